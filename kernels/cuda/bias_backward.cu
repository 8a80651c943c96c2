// The gradient of a bias, the column sums of dout (R, N): kernels/gemm.h.
// Mapping: each block sums a slab of rows and a second kernel (reduce.cuh) adds the slabs, both in a fixed order; one
// thread per sixteen bytes of a row if rows are aligned, otherwise per element.
// Bound: memory, dout once.  Reference: kernels/cpu/gemm.cpp.
#include <algorithm>

#include "kernels/cuda/dispatch.h"
#include "kernels/cuda/ops.h"
#include "kernels/cuda/reduce.cuh"

namespace tri::cuda {
namespace {

// Column sums, first pass. A block has 32 lanes of kVec columns each and processes 8 rows at a time, every gridDim.y-th
// group of eight rows; reduce.cuh adds the blocks' sums.
template <class T, int kVec>
__global__ void column_slab_kernel(float* partial, const T* inp, int64_t rows, int64_t columns) {
  __shared__ float part[8][32 * kVec + 1];
  const int64_t c = (blockIdx.x * int64_t{32} + threadIdx.x) * kVec;
  float sums[kVec] = {};
  if (c < columns)
#pragma unroll 4
    for (int64_t r = blockIdx.y * int64_t{8} + threadIdx.y; r < rows; r += int64_t{8} * gridDim.y) {
      const Pack<T, kVec> pack = load_pack<kVec>(inp + r * columns + c);
#pragma unroll
      for (int i = 0; i < kVec; ++i) sums[i] += to_float(pack.item[i]);
    }
#pragma unroll
  for (int i = 0; i < kVec; ++i) part[threadIdx.y][i * 32 + threadIdx.x] = sums[i];
  __syncthreads();
  for (int i = static_cast<int>(threadIdx.y); i < kVec; i += 8) {
    float sum = 0;
#pragma unroll
    for (int y = 0; y < 8; ++y) sum += part[y][i * 32 + threadIdx.x];
    if (c + i < columns) partial[blockIdx.y * columns + c + i] = sum;
  }
}

template <class T, int kVec>
void sum_columns(const BiasBackward& b, CudaStream& stream) {
  const int64_t rows = b.dout[0], columns = b.dout[1], groups = (columns + 32 * kVec - 1) / (32 * kVec);
  // Sixteen blocks per multiprocessor, if there are enough rows, so that the last blocks cost little.
  const int64_t slabs = std::clamp<int64_t>(16 * num_multiprocessors(stream) / groups, 1, (rows + 63) / 64);
  auto* partial = static_cast<float*>(
      workspace(stream, Scratch::kColumnSums, sizeof(float) * static_cast<size_t>(slabs * columns)));
  const dim3 grid(static_cast<unsigned>(groups), static_cast<unsigned>(slabs));
  column_slab_kernel<T, kVec><<<grid, dim3(32, 8), 0, stream>>>(partial, pointer<T>(b.dout), rows, columns);
  TRI_CUDA_LAUNCH("bias_backward");
  add_slabs<1>({{pointer<float>(b.dbias)}}, partial, columns, static_cast<int>(slabs), stream);
}

}  // namespace

void bias_backward(const BiasBackward& b, CudaStream& stream) {
  if (b.dout.numel() == 0) return;
  dispatch(b.dout.dtype, [&](auto type) {
    using T = decltype(type);
    aligned<T>(b.dout[1], {b.dout}) ? sum_columns<T, Pack<T>::kSize>(b, stream) : sum_columns<T, 1>(b, stream);
  });
}

}  // namespace tri::cuda
