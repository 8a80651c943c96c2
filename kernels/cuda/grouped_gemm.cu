// GEMMs of experts whose row offsets lie in device memory. Formulas and shapes: kernels/grouped_gemm.h.
// Hopper's kernel (hopper_grouped_gemm.cu) computes bf16; this file has the choice and a kernel for everything else:
// fp32, other GPUs, odd widths. It multiplies in fp32 without tensor cores: a block per 64 x 64 of the output, 4 x 4
// per thread, 16 of K at a time in shared memory. Blocks beyond the last tile of rows end at once.
// Bound: 2 · N · K FLOPs a row. Reference: kernels/cpu/grouped_gemm.cpp.
#include "kernels/cuda/grouped_gemm.h"

#include "kernels/attention.h"
#include "kernels/core/dims.h"
#include "kernels/cuda/check.h"
#include "kernels/cuda/context.h"
#include "kernels/cuda/device_math.cuh"
#include "kernels/cuda/dispatch.h"
#include "kernels/cuda/ops.h"
#include "kernels/grouped_gemm.h"

namespace tri::cuda {
namespace {

constexpr int kTile = 64, kDepth = 16, kGroupedThreads = 256, kPerThread = 4;

// out (m, n) = a · b + (add ? out : 0), of one tile. a's element (i, k) is at i · a_row + k · a_column, b's (k, j) at
// k · b_row + j · b_column.
template <class T, class Out>
struct Product {
  Out* out;
  const T *a, *b;
  int64_t a_row, a_column, b_row, b_column;
  int m, n, k;
  bool add;
};

template <class T, class Out>
__device__ __forceinline__ void multiply_tile(const Product<T, Out>& p, int first_m, int first_n) {
  __shared__ float a[kDepth][kTile + 4], b[kDepth][kTile + 4];
  const int thread = static_cast<int>(threadIdx.x), row = thread / 16 * kPerThread, column = thread % 16 * kPerThread;
  float sum[kPerThread][kPerThread] = {};
  for (int first_k = 0; first_k < p.k; first_k += kDepth) {
    for (int i = thread; i < kTile * kDepth; i += kGroupedThreads) {
      // Neighbouring threads read neighbouring elements.
      const int ak = p.a_column == 1 ? i % kDepth : i / kTile, ai = p.a_column == 1 ? i / kDepth : i % kTile;
      const int bk = p.b_row == 1 ? i % kDepth : i / kTile, bj = p.b_row == 1 ? i / kDepth : i % kTile;
      a[ak][ai] = first_m + ai < p.m && first_k + ak < p.k
                      ? to_float(p.a[(first_m + ai) * p.a_row + (first_k + ak) * p.a_column])
                      : 0.0f;
      b[bk][bj] = first_n + bj < p.n && first_k + bk < p.k
                      ? to_float(p.b[(first_k + bk) * p.b_row + (first_n + bj) * p.b_column])
                      : 0.0f;
    }
    __syncthreads();
#pragma unroll
    for (int k = 0; k < kDepth; ++k) {
      float x[kPerThread], y[kPerThread];
#pragma unroll
      for (int i = 0; i < kPerThread; ++i) x[i] = a[k][row + i], y[i] = b[k][column + i];
#pragma unroll
      for (int i = 0; i < kPerThread; ++i)
#pragma unroll
        for (int j = 0; j < kPerThread; ++j) sum[i][j] = fmaf(x[i], y[j], sum[i][j]);
    }
    __syncthreads();
  }
#pragma unroll
  for (int i = 0; i < kPerThread; ++i)
#pragma unroll
    for (int j = 0; j < kPerThread; ++j) {
      const int at_m = first_m + row + i, at_n = first_n + column + j;
      if (at_m >= p.m || at_n >= p.n) continue;
      Out& to = p.out[int64_t{at_m} * p.n + at_n];
      to = from_float<Out>(p.add ? to_float(to) + sum[i][j] : sum[i][j]);
    }
}

// out (P, N) = rows (P, K) · weight[e]. Tiles of rows (blockIdx.y) are those of expert 0, then those of expert 1, ...
template <class T>
__global__ void __launch_bounds__(kGroupedThreads)
    grouped_rows_kernel(T* out, const T* rows, const T* weight, const int32_t* offsets, int experts, int n, int k,
                        bool transposed) {
  int tile = static_cast<int>(blockIdx.y), e = 0, first = 0, count = 0;
  for (; e < experts; ++e) {
    first = offsets[e];
    count = offsets[e + 1] - first;
    const int tiles = (count + kTile - 1) / kTile;
    if (tile < tiles) break;
    tile -= tiles;
  }
  if (e == experts) return;
  const Product<T, T> product{out + int64_t{first} * n,
                              rows + int64_t{first} * k,
                              weight + int64_t{e} * n * k,
                              k,
                              1,
                              transposed ? 1 : n,
                              transposed ? k : 1,
                              count,
                              n,
                              k,
                              false};
  multiply_tile(product, tile * kTile, static_cast<int>(blockIdx.x) * kTile);
}

template <class T>
__global__ void __launch_bounds__(kGroupedThreads)
    grouped_weights_kernel(float* dweight, const T* dout, const T* inp, const int32_t* offsets, int m, int n,
                           bool add) {
  const int e = static_cast<int>(blockIdx.z), first = offsets[e], count = offsets[e + 1] - first;
  if (add && count == 0) return;
  const Product<T, float> product{
      dweight + int64_t{e} * m * n, dout + int64_t{first} * m, inp + int64_t{first} * n, 1, m, n, 1, m, n, count, add};
  multiply_tile(product, static_cast<int>(blockIdx.y) * kTile, static_cast<int>(blockIdx.x) * kTile);
}

unsigned tiles_of(int64_t extent) { return static_cast<unsigned>(ceil_div(extent, kTile)); }

void grouped_product(const GroupedProduct& p, CudaStream& stream) {
  const GpuProperties& gpu = stream.context().properties();
  if (flash_attention_is_hoppers(gpu) && hopper_grouped_gemm_takes(p)) return hopper_grouped_gemm(p, stream);
  const int32_t* offsets = pointer<int32_t>(p.offsets);
  const auto width = [](const Tensor& tensor) { return static_cast<int>(tensor[tensor.dims - 1]); };
  dispatch(p.rows.dtype, [&](auto type) {
    using T = decltype(type);
    if (p.form == GroupedForm::kWeightGradient) {
      const dim3 blocks(tiles_of(width(p.other)), tiles_of(width(p.rows)), static_cast<unsigned>(p.experts()));
      grouped_weights_kernel<T><<<blocks, kGroupedThreads, 0, stream>>>(pointer<float>(p.out), pointer<T>(p.rows),
                                                                        pointer<T>(p.other), offsets, width(p.rows),
                                                                        width(p.other), p.add);
      return;
    }
    const dim3 blocks(tiles_of(width(p.out)), tiles_of(p.rows[0]) + static_cast<unsigned>(p.experts()));
    grouped_rows_kernel<T><<<blocks, kGroupedThreads, 0, stream>>>(
        pointer<T>(p.out), pointer<T>(p.rows), pointer<T>(p.other), offsets, p.experts(), width(p.out), width(p.rows),
        p.form == GroupedForm::kForward);
  });
  TRI_CUDA_LAUNCH("grouped_product");
}

}  // namespace

void grouped_forward(const GroupedForward& a, CudaStream& stream) {
  grouped_product({GroupedForm::kForward, a.out, a.inp, a.weight, a.offsets}, stream);
}

void grouped_input_gradient(const GroupedInputGradient& a, CudaStream& stream) {
  grouped_product({GroupedForm::kInputGradient, a.dinp, a.dout, a.weight, a.offsets}, stream);
}

void grouped_weight_gradient(const GroupedWeightGradient& a, CudaStream& stream) {
  grouped_product({GroupedForm::kWeightGradient, a.dweight, a.dout, a.inp, a.offsets, a.beta != 0.0f}, stream);
}

}  // namespace tri::cuda
