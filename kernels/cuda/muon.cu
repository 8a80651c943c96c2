// The ops of Muon: formulas and shapes in kernels/muon.h.
// Mapping: one thread per four elements where parts and runs are aligned, otherwise per element; in scale_matrix one
// per 16 bytes. matrix_sumsq: a fixed number of blocks adds in double, and one block adds their sums in a fixed order.
// Bound: memory; momentum_update reads 8 and writes 8 bytes per element (6 and 6 with a momentum in bf16), pack_matrix
// reads 4 and writes 2, unpack_matrix reads 6 and writes 4, matrix_sumsq reads 2, scale_matrix reads 2 and writes 2.
// Reference: kernels/cpu/muon.cpp.
#include "kernels/muon.h"

#include <algorithm>

#include "kernels/core/dims.h"
#include "kernels/cuda/check.h"
#include "kernels/cuda/device_math.cuh"
#include "kernels/cuda/dispatch.h"
#include "kernels/cuda/grid.cuh"
#include "kernels/cuda/ops.h"
#include "kernels/cuda/workspace.h"
#include "kernels/moment_rounding.h"

namespace tri::cuda {
namespace {

__device__ Pack<float, 4> round_momentum(const float (&m)[4], const TensorDraws*, int, int64_t, int64_t, uint64_t,
                                         float) {
  return pack_floats<float>(m);
}
__device__ Pack<__nv_bfloat16, 4> round_momentum(const float (&m)[4], const TensorDraws* draws, int tensor,
                                                 int64_t first_block, int64_t first, uint64_t step_key, __nv_bfloat16) {
  const TensorDraws of_tensor = draws[tensor];
  const auto quad = static_cast<uint32_t>((first_block - of_tensor.first_block) * (kBlock / 4) + first / 4);
  const MomentDraw draw = draw_of(of_tensor.key(), step_key, of_tensor.global_quad(quad));
  uint16_t bits[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) bits[i] = round_stochastically(m[i], draw.exp_avg(i));
  Pack<__nv_bfloat16, 4> pack;
  memcpy(&pack, bits, sizeof bits);
  return pack;
}

template <class T>
__global__ void momentum_update_kernel(T* momentum, float* grad, const float* grad_scale, const int32_t* block_tensor,
                                       const TensorDraws* draws, int64_t first_block, uint64_t step_key, int64_t n,
                                       float mu) {
  const int64_t first = thread_index() * 4;
  if (first >= n) return;
  float g[4], m[4];
  unpack(load_pack<4>(grad + first), g);
  unpack(load_pack<4>(momentum + first), m);
  const int owner = block_tensor[first / kBlock];
  const float scale = grad_scale[0];
  if (owner < 0 || isnan(scale)) return;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    g[i] *= scale;
    m[i] = mu * m[i] + g[i];
    g[i] += mu * m[i];
  }
  store_pack(momentum + first, round_momentum(m, draws, owner, first_block, first, step_key, T{}));
  store_pack(grad + first, pack_floats<float>(g));
}

// kVec elements of a part lie together in the slice.
template <class T, int kVec>
__global__ void pack_matrix_kernel(T* out, const float* inp, MatrixRuns runs, int64_t count) {
  const int64_t p = thread_index() * kVec;
  if (p >= count) return;
  float x[kVec];
  unpack(load_pack<kVec>(inp + runs.at(p)), x);
  store_pack(out + p, pack_floats<T>(x));
}

template <class T, int kVec>
__global__ void unpack_matrix_kernel(float* out, const T* inp, const float* master, MatrixRuns runs, int64_t count,
                                     float scale, float decay) {
  const int64_t p = thread_index() * kVec;
  if (p >= count) return;
  const int64_t at = runs.at(p);
  float x[kVec], w[kVec];
  unpack(load_pack<kVec>(inp + p), x);
  unpack(load_pack<kVec>(master + at), w);
#pragma unroll
  for (int i = 0; i < kVec; ++i) x[i] = scale * x[i] + decay * w[i];
  store_pack(out + at, pack_floats<float>(x));
}

// Whether groups of four elements of a part lie together, at multiples of four.
template <class T>
bool in_fours(const MatrixRuns& r, int64_t count, const Tensor& part, std::initializer_list<Tensor> slices) {
  for (const int64_t number : {r.offset, r.run, r.stride, r.first, count})
    if (number % 4 != 0) return false;
  return reinterpret_cast<uintptr_t>(part.data) % (4 * sizeof(T)) == 0 && aligned<float>(0, slices);
}

constexpr int kSumBlocks = 512;  // fixed, so that every GPU adds in the same order

__device__ void add_block(double sum, double* part, double& total) {
  part[threadIdx.x] = sum;
  __syncthreads();
  for (int half = kThreads / 2; half > 0; half /= 2) {
    if (static_cast<int>(threadIdx.x) < half) part[threadIdx.x] += part[threadIdx.x + half];
    __syncthreads();
  }
  total = part[0];
}

template <class T, int kVec>
__global__ void partial_sumsq_kernel(double* sums, const T* inp, int64_t count) {
  __shared__ double part[kThreads];
  double sum = 0;
  for (int64_t i = thread_index() * kVec; i < count; i += int64_t{kSumBlocks} * kThreads * kVec) {
    float x[kVec];
    unpack(load_pack<kVec>(inp + i), x);
    float four = 0;  // a few squares in fp32, then in double
#pragma unroll
    for (int k = 0; k < kVec; ++k) four += x[k] * x[k];
    sum += four;
  }
  double total = 0;
  add_block(sum, part, total);
  if (threadIdx.x == 0) sums[blockIdx.x] = total;
}

__global__ void total_sumsq_kernel(float* out, const double* sums) {
  __shared__ double part[kThreads];
  double sum = 0;
  for (int i = threadIdx.x; i < kSumBlocks; i += kThreads) sum += sums[i];
  double total = 0;
  add_block(sum, part, total);
  if (threadIdx.x == 0) out[0] = static_cast<float>(total);
}

// A thread writes kVec elements of `width` = columns / shards adjacent ones.
template <class T, int kVec>
__global__ void scale_matrix_kernel(T* out, const T* inp, const float* sumsq, float eps, int64_t rows, int64_t columns,
                                    int64_t width, bool out_sharded, bool inp_sharded) {
  const int64_t i = thread_index() * kVec;
  if (i >= rows * columns) return;
  const float factor = sumsq == nullptr ? 1.0f : 1.0f / (sqrtf(sumsq[0]) + eps);
  int64_t from = i, to = i;
  if (out_sharded || inp_sharded) {
    const int64_t r = i / columns, c = i - r * columns, s = c / width;
    const int64_t sharded = (s * rows + r) * width + c - s * width;
    if (out_sharded) to = sharded;
    if (inp_sharded) from = sharded;
  }
  float x[kVec];
  unpack(load_pack<kVec>(inp + from), x);
#pragma unroll
  for (int k = 0; k < kVec; ++k) x[k] *= factor;
  store_pack(out + to, pack_floats<T>(x));
}

}  // namespace

void momentum_update(const MomentumUpdate& a, CudaStream& stream) {
  const int64_t n = a.grad.numel();
  if (n == 0) return;
  dispatch(a.momentum.dtype, [&](auto type) {
    using T = decltype(type);
    momentum_update_kernel<T><<<blocks_for(n / 4), kThreads, 0, stream>>>(
        pointer<T>(a.momentum), pointer<float>(a.grad), pointer<float>(a.grad_scale), pointer<int32_t>(a.block_tensor),
        pointer<TensorDraws>(a.rounding.draws), a.rounding.first_block, a.rounding.step_key, n, a.mu);
  });
  TRI_CUDA_LAUNCH("momentum_update");
}

void pack_matrix(const PackMatrix& a, CudaStream& stream) {
  const int64_t count = a.out.numel();
  if (count == 0) return;
  dispatch(a.out.dtype, [&](auto type) {
    using T = decltype(type);
    const bool fours = in_fours<T>(a.runs, count, a.out, {a.inp});
    const auto kernel = fours ? pack_matrix_kernel<T, 4> : pack_matrix_kernel<T, 1>;
    kernel<<<blocks_for(fours ? count / 4 : count), kThreads, 0, stream>>>(pointer<T>(a.out), pointer<float>(a.inp),
                                                                           a.runs, count);
  });
  TRI_CUDA_LAUNCH("pack_matrix");
}

void unpack_matrix(const UnpackMatrix& a, CudaStream& stream) {
  const int64_t count = a.inp.numel();
  if (count == 0) return;
  dispatch(a.inp.dtype, [&](auto type) {
    using T = decltype(type);
    const bool fours = in_fours<T>(a.runs, count, a.inp, {a.out, a.master});
    const auto kernel = fours ? unpack_matrix_kernel<T, 4> : unpack_matrix_kernel<T, 1>;
    kernel<<<blocks_for(fours ? count / 4 : count), kThreads, 0, stream>>>(
        pointer<float>(a.out), pointer<T>(a.inp), pointer<float>(a.master), a.runs, count, a.scale, a.decay);
  });
  TRI_CUDA_LAUNCH("unpack_matrix");
}

void matrix_sumsq(const MatrixSumsq& a, CudaStream& stream) {
  auto* sums = static_cast<double*>(workspace(stream, Scratch::kSumsq, sizeof(double) * kSumBlocks));
  dispatch(a.inp.dtype, [&](auto type) {
    using T = decltype(type);
    constexpr int kVec = Pack<T>::kSize;
    const bool packs = a.inp.numel() % kVec == 0 && aligned<T>(0, {a.inp});
    const auto kernel = packs ? partial_sumsq_kernel<T, kVec> : partial_sumsq_kernel<T, 1>;
    kernel<<<kSumBlocks, kThreads, 0, stream>>>(sums, pointer<T>(a.inp), a.inp.numel());
  });
  total_sumsq_kernel<<<1, kThreads, 0, stream>>>(pointer<float>(a.sumsq), sums);
  TRI_CUDA_LAUNCH("matrix_sumsq");
}

void scale_matrix(const ScaleMatrix& a, CudaStream& stream) {
  const int64_t count = a.out.numel();
  if (count == 0) return;
  const int64_t width = a.out[1] / std::max(a.out_shards, a.inp_shards);
  dispatch(a.out.dtype, [&](auto type) {
    using T = decltype(type);
    constexpr int kVec = Pack<T>::kSize;
    const bool packs = width % kVec == 0 && aligned<T>(0, {a.out, a.inp});
    const auto kernel = packs ? scale_matrix_kernel<T, kVec> : scale_matrix_kernel<T, 1>;
    kernel<<<blocks_for(packs ? count / kVec : count), kThreads, 0, stream>>>(
        pointer<T>(a.out), pointer<T>(a.inp), pointer<float>(a.sumsq), a.eps, a.out[0], a.out[1], width,
        a.out_shards > 1, a.inp_shards > 1);
  });
  TRI_CUDA_LAUNCH("scale_matrix");
}

}  // namespace tri::cuda
