// Reductions shared by several kernels. All orders are fixed: the same inputs give the same bits.
#pragma once

#include "kernels/cuda/check.h"
#include "kernels/cuda/device_math.cuh"
#include "kernels/cuda/workspace.h"

namespace tri::cuda {

// Returns the sum over a block of kThreads threads, in every thread. `shared` holds kThreads / 32 floats.
template <int kThreads>
__device__ __forceinline__ float block_sum(float value, float* shared) {
  value = warp_sum(value);
  __syncthreads();  // earlier readers of `shared` have finished
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

// Local to each file: files with kernels for sm_90a alone also include this header, and the linker must not let one of
// their kernels stand for that of a file with code for all architectures.
namespace {

// sums.out[k][c] += sum over slabs of partial[slab, k, c], in a fixed order: the second pass of column sums.
template <int kSums>
struct ColumnSums {
  float* out[kSums];  // (C) f32 each; null: not computed
};

// Mapping: one block per 32 columns of a sum k; kSlabThreads threads per column, each adds every kSlabThreads-th slab,
// of which it loads kSlabsAhead before it adds the first.
constexpr int kSlabThreads = 32, kSlabsAhead = 16;

template <int kSums>
__global__ void __launch_bounds__(32 * kSlabThreads)
    add_slabs_kernel(ColumnSums<kSums> sums, const float* partial, int64_t columns, int slabs) {
  __shared__ float part[kSlabThreads][33];
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");  // for the slabs, if the launch was early
#endif
  const int64_t c = blockIdx.x * int64_t{32} + threadIdx.x;
  float* out = sums.out[0];
#pragma unroll
  for (int k = 1; k < kSums; ++k)
    if (static_cast<int>(blockIdx.y) == k) out = sums.out[k];
  if (out == nullptr) return;
  float sum = 0;
  if (c < columns)
    for (int first = threadIdx.y; first < slabs; first += kSlabsAhead * kSlabThreads) {
      float values[kSlabsAhead];
#pragma unroll
      for (int i = 0; i < kSlabsAhead; ++i) {
        const int slab = first + i * kSlabThreads;
        values[i] = slab < slabs ? partial[(int64_t{slab} * kSums + blockIdx.y) * columns + c] : 0.0f;
      }
#pragma unroll
      for (int i = 0; i < kSlabsAhead; ++i) sum += values[i];  // adding 0 changes no bit: sum is never -0
    }
  part[threadIdx.y][threadIdx.x] = sum;
  __syncthreads();
  if (threadIdx.y > 0 || c >= columns) return;
  sum = 0;
#pragma unroll
  for (int y = 0; y < kSlabThreads; ++y) sum += part[y][threadIdx.x];
  out[c] += sum;
}

template <int kSums>
void add_slabs(ColumnSums<kSums> sums, const float* partial, int64_t columns, int slabs, CudaStream& stream) {
  const dim3 grid(static_cast<unsigned>((columns + 31) / 32), kSums);
  add_slabs_kernel<kSums><<<grid, dim3(32, kSlabThreads), 0, stream>>>(sums, partial, columns, slabs);
  TRI_CUDA_LAUNCH("add_slabs");
}

// The same on a GPU of compute capability 9.0 or later: the launch overlaps the end of the kernel before it, which
// writes the slabs.
template <int kSums>
void add_slabs_early(ColumnSums<kSums> sums, const float* partial, int64_t columns, int slabs, CudaStream& stream) {
  cudaLaunchAttribute early{};
  early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  early.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(static_cast<unsigned>((columns + 31) / 32), kSums);
  config.blockDim = dim3(32, kSlabThreads);
  config.stream = stream;
  config.attrs = &early;
  config.numAttrs = 1;
  TRI_CUDA(cudaLaunchKernelEx(&config, add_slabs_kernel<kSums>, sums, partial, columns, slabs));
}

}  // namespace
}  // namespace tri::cuda
