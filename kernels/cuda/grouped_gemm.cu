// GEMMs of experts whose row offsets lie in device memory. Formulas and shapes: kernels/grouped_gemm.h.
// Hopper's kernel (hopper_grouped_gemm.cuh) computes bf16 and FP8; this file has the choice and a kernel for everything
// else: fp32, other GPUs, odd widths. It multiplies in fp32 without tensor cores: a block per 64 x 64 of the output,
// 4 x 4 per thread, 16 of K at a time in shared memory. Blocks beyond the last tile of rows end at once.
// Bound: 2 · N · K FLOPs a row. Reference: kernels/cpu/grouped_gemm.cpp.
#include "kernels/cuda/grouped_gemm.h"

#include <cuda_fp8.h>

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

template <class T>
__device__ __forceinline__ float element(T value) {
  if constexpr (sizeof(T) == 1)
    return static_cast<float>(value);
  else
    return to_float(value);
}

// The factor of FP8 operands; null pointers: 1.
struct Factor {
  const float *a = nullptr, *b = nullptr;
  __device__ float value() const { return a == nullptr ? 1.0f : *a * *b; }
};

// out (m, n) = factor · a · b + (add ? out : 0), of one tile. a's element (i, k) is at i · a_row + k · a_column, b's
// (k, j) at k · b_row + j · b_column.
template <class A, class B, class Out>
struct Product {
  Out* out;
  const A* a;
  const B* b;
  int64_t a_row, a_column, b_row, b_column;
  int m, n, k;
  Factor factor;
  bool add;
};

template <class A, class B, class Out>
__device__ __forceinline__ void multiply_tile(const Product<A, B, Out>& p, int first_m, int first_n) {
  __shared__ float a[kDepth][kTile + 4], b[kDepth][kTile + 4];
  const int thread = static_cast<int>(threadIdx.x), row = thread / 16 * kPerThread, column = thread % 16 * kPerThread;
  float sum[kPerThread][kPerThread] = {};
  for (int first_k = 0; first_k < p.k; first_k += kDepth) {
    for (int i = thread; i < kTile * kDepth; i += kGroupedThreads) {
      // Neighbouring threads read neighbouring elements.
      const int ak = p.a_column == 1 ? i % kDepth : i / kTile, ai = p.a_column == 1 ? i / kDepth : i % kTile;
      const int bk = p.b_row == 1 ? i % kDepth : i / kTile, bj = p.b_row == 1 ? i / kDepth : i % kTile;
      a[ak][ai] = first_m + ai < p.m && first_k + ak < p.k
                      ? element(p.a[(first_m + ai) * p.a_row + (first_k + ak) * p.a_column])
                      : 0.0f;
      b[bk][bj] = first_n + bj < p.n && first_k + bk < p.k
                      ? element(p.b[(first_k + bk) * p.b_row + (first_n + bj) * p.b_column])
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
  const float factor = p.factor.value();
#pragma unroll
  for (int i = 0; i < kPerThread; ++i)
#pragma unroll
    for (int j = 0; j < kPerThread; ++j) {
      const float product = factor * sum[i][j];
      const int at_m = first_m + row + i, at_n = first_n + column + j;
      if (at_m >= p.m || at_n >= p.n) continue;
      Out& to = p.out[int64_t{at_m} * p.n + at_n];
      to = from_float<Out>(p.add ? to_float(to) + product : product);
    }
}

// out (P, N) = rows (P, K) · weight[e]. Tiles of rows (blockIdx.x, of which there may be more than 65,535) are those of
// expert 0, then those of expert 1, ...
template <class Out, class A, class B>
__global__ void __launch_bounds__(kGroupedThreads)
    grouped_rows_kernel(Out* out, const A* rows, const B* weight, const int32_t* offsets, int experts, int n, int k,
                        bool transposed, Factor factor) {
  int tile = static_cast<int>(blockIdx.x), e = 0, first = 0, count = 0;
  for (; e < experts; ++e) {
    first = offsets[e];
    count = offsets[e + 1] - first;
    const int tiles = (count + kTile - 1) / kTile;
    if (tile < tiles) break;
    tile -= tiles;
  }
  if (e == experts) return;
  const Product<A, B, Out> product{out + int64_t{first} * n,
                                   rows + int64_t{first} * k,
                                   weight + int64_t{e} * n * k,
                                   k,
                                   1,
                                   transposed ? 1 : n,
                                   transposed ? k : 1,
                                   count,
                                   n,
                                   k,
                                   factor,
                                   false};
  multiply_tile(product, tile * kTile, static_cast<int>(blockIdx.y) * kTile);
}

// `rows` > 0: dout and inp are transposed, (M, rows) and (N, rows).
template <class A, class B>
__global__ void __launch_bounds__(kGroupedThreads)
    grouped_weights_kernel(float* dweight, const A* dout, const B* inp, const int32_t* offsets, int m, int n,
                           int64_t rows, Factor factor, bool add) {
  const int e = static_cast<int>(blockIdx.z), first = offsets[e], count = offsets[e + 1] - first;
  if (add && count == 0) return;
  const bool columns = rows > 0;
  const Product<A, B, float> product{dweight + int64_t{e} * m * n,
                                     dout + int64_t{first} * (columns ? 1 : m),
                                     inp + int64_t{first} * (columns ? 1 : n),
                                     columns ? rows : 1,
                                     columns ? 1 : m,
                                     columns ? 1 : n,
                                     columns ? rows : 1,
                                     m,
                                     n,
                                     count,
                                     factor,
                                     add};
  multiply_tile(product, static_cast<int>(blockIdx.y) * kTile, static_cast<int>(blockIdx.x) * kTile);
}

// Calls f with the types of the operands `rows` and `other`.
template <class F>
void dispatch_operands(const GroupedProduct& p, F f) {
  if (!is_fp8(p.rows.dtype)) return dispatch(p.rows.dtype, [&](auto type) { f(type, type); });
  if (p.rows.dtype == Dtype::kE4M3) return f(__nv_fp8_e4m3{}, __nv_fp8_e4m3{});
  TRI_REQUIRE(p.other.dtype == Dtype::kE4M3, "a grouped GEMM of two gradients");
  f(__nv_fp8_e5m2{}, __nv_fp8_e4m3{});
}

unsigned tiles_of(int64_t extent) { return static_cast<unsigned>(ceil_div(extent, kTile)); }

void grouped_product(const GroupedProduct& p, CudaStream& stream) {
  const GpuProperties& gpu = stream.context().properties();
  if (flash_attention_is_hoppers(gpu) && hopper_grouped_gemm_takes(p)) return hopper_grouped_gemm(p, stream);
  const int32_t* offsets = pointer<int32_t>(p.offsets);
  const auto width = [](const Tensor& tensor) { return static_cast<int>(tensor[tensor.dims - 1]); };
  const Factor factor{pointer<float>(p.inverse_rows), pointer<float>(p.inverse_other)};
  dispatch_operands(p, [&](auto of_rows, auto of_other) {
    using A = decltype(of_rows);
    using B = decltype(of_other);
    if (p.form == GroupedForm::kWeightGradient) {
      const auto m = static_cast<int>(p.out[1]), n = static_cast<int>(p.out[2]);
      const dim3 blocks(tiles_of(n), tiles_of(m), static_cast<unsigned>(p.experts()));
      grouped_weights_kernel<A, B>
          <<<blocks, kGroupedThreads, 0, stream>>>(pointer<float>(p.out), pointer<A>(p.rows), pointer<B>(p.other),
                                                   offsets, m, n, is_fp8(p.rows.dtype) ? p.rows[1] : 0, factor, p.add);
      return;
    }
    const dim3 blocks(tiles_of(p.rows[0]) + static_cast<unsigned>(p.experts()), tiles_of(width(p.out)));
    dispatch(p.out.dtype, [&](auto of_out) {
      using Out = decltype(of_out);
      grouped_rows_kernel<Out, A, B><<<blocks, kGroupedThreads, 0, stream>>>(
          pointer<Out>(p.out), pointer<A>(p.rows), pointer<B>(p.other), offsets, p.experts(), width(p.out),
          width(p.rows), p.form == GroupedForm::kForward, factor);
    });
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

void grouped_fp8_gemm(const GroupedFp8Gemm& g, CudaStream& stream) {
  grouped_product({.form = GroupedForm::kForward,
                   .out = g.out,
                   .rows = g.a,
                   .other = g.b,
                   .offsets = g.offsets,
                   .inverse_rows = g.inverse_a,
                   .inverse_other = g.inverse_b,
                   .fast = g.accumulation == Fp8Accumulation::kFast},
                  stream);
}

void grouped_fp8_gradient(const GroupedFp8Gradient& g, CudaStream& stream) {
  grouped_product({.form = GroupedForm::kWeightGradient,
                   .out = g.dweight,
                   .rows = g.dout_t,
                   .other = g.inp_t,
                   .offsets = g.offsets,
                   .add = g.beta != 0.0f,
                   .inverse_rows = g.inverse_a,
                   .inverse_other = g.inverse_b,
                   .fast = g.accumulation == Fp8Accumulation::kFast},
                  stream);
}

}  // namespace tri::cuda
