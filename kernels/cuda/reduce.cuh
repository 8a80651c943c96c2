// Reductions that several kernels share. All orders are fixed: the same inputs give the same bits.
#pragma once

#include "kernels/cuda/check.h"
#include "kernels/cuda/device_math.cuh"
#include "kernels/cuda/workspace.h"

namespace tri::cuda {

// Sum over a block of kThreads threads, in every thread. `shared` holds kThreads / 32 floats.
template <int kThreads>
__device__ __forceinline__ float block_sum(float value, float* shared) {
  value = warp_sum(value);
  __syncthreads();  // earlier readers of `shared` are done
  if (threadIdx.x % 32 == 0) shared[threadIdx.x / 32] = value;
  __syncthreads();
  float sum = 0;
#pragma unroll
  for (int warp = 0; warp < kThreads / 32; ++warp) sum += shared[warp];
  return sum;
}

template <int kThreads>
__device__ __forceinline__ float block_max(float value, float* shared) {
  value = warp_max(value);
  __syncthreads();
  if (threadIdx.x % 32 == 0) shared[threadIdx.x / 32] = value;
  __syncthreads();
  float most = shared[0];
#pragma unroll
  for (int warp = 1; warp < kThreads / 32; ++warp) most = fmaxf(most, shared[warp]);
  return most;
}

// Column sums of what `value(r, c)` yields, added to sums[c]: first over slabs of rows, each by one block of 32 columns
// and 8 rows at a time, then over the slabs in order. kSums sums at once: value(r, c, float (&v)[kSums]).
template <int kSums>
struct ColumnSums {
  float* out[kSums];  // (C) f32 each; null: not wanted
};

constexpr int kSlabs = 64;

template <int kSums, class Value>
__global__ void column_slabs(float* partial, int64_t rows, int64_t columns, Value value) {
  __shared__ float part[kSums][8][33];
  const int64_t c = blockIdx.x * int64_t{32} + threadIdx.x;
  const int64_t slab = (rows + kSlabs - 1) / kSlabs, first = blockIdx.y * slab;
  const int64_t last = first + slab < rows ? first + slab : rows;
  float sums[kSums] = {};
  if (c < columns)
    for (int64_t r = first + threadIdx.y; r < last; r += 8) {
      float v[kSums];
      value(r, c, v);
#pragma unroll
      for (int k = 0; k < kSums; ++k) sums[k] += v[k];
    }
#pragma unroll
  for (int k = 0; k < kSums; ++k) part[k][threadIdx.y][threadIdx.x] = sums[k];
  __syncthreads();
  if (threadIdx.y != 0 || c >= columns) return;
#pragma unroll
  for (int k = 0; k < kSums; ++k) {
    float sum = 0;
    for (int y = 0; y < 8; ++y) sum += part[k][y][threadIdx.x];
    partial[(k * kSlabs + blockIdx.y) * columns + c] = sum;
  }
}

template <int kSums>
__global__ void add_slabs(ColumnSums<kSums> sums, const float* partial, int64_t columns) {
  const int64_t c = blockIdx.x * int64_t{256} + threadIdx.x;
  if (c >= columns) return;
#pragma unroll
  for (int k = 0; k < kSums; ++k) {
    if (sums.out[k] == nullptr) continue;
    float sum = 0;
    for (int slab = 0; slab < kSlabs; ++slab) sum += partial[(k * kSlabs + slab) * columns + c];
    sums.out[k][c] += sum;
  }
}

template <int kSums, class Value>
void add_column_sums(ColumnSums<kSums> sums, int64_t rows, int64_t columns, Value value, cudaStream_t stream) {
  if (rows == 0 || columns == 0) return;
  auto* partial = static_cast<float*>(
      workspace(stream, Scratch::kColumnSums, sizeof(float) * kSums * kSlabs * static_cast<size_t>(columns)));
  const dim3 grid(static_cast<unsigned>((columns + 31) / 32), kSlabs);
  column_slabs<kSums><<<grid, dim3(32, 8), 0, stream>>>(partial, rows, columns, value);
  add_slabs<kSums><<<static_cast<unsigned>((columns + 255) / 256), 256, 0, stream>>>(sums, partial, columns);
  TRI_CUDA_LAUNCH("column sums");
}

}  // namespace tri::cuda
