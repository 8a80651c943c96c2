// AdamW, LAMB, the EMA of the weights and sums, over flat slices: formulas in kernels/optimizer.h.
// Mapping of the updates: one thread per 16 bytes of the moments, four elements in fp32, eight in bf16. A block of
// kBlock elements has one owner, so a thread looks it up once. Moments in bf16 use 128 random bits per four elements
// (Philox, about 15 integer instructions per element, which memory latency hides). Sums of squares: each warp adds a
// run of blocks into scratch (double), then one block per tensor adds its runs in a fixed order.
// Bound: memory; AdamW reads 16 and writes 12 bytes per element (12 and 8 with moments in bf16), 2 for the bf16 copy, 1
// for FP8 weights, whose amax and counts a block of threads adds together. The EMA reads 8 and writes 4.
// AdamW alongside other kernels has a block on each of few multiprocessors, which loops over the elements.
// Reference: kernels/cpu/optimizer.cpp.
#include "kernels/core/dims.h"
#include "kernels/cuda/context.h"
#include "kernels/cuda/device_math.cuh"
#include "kernels/cuda/dispatch.h"
#include "kernels/cuda/fp8_slice.cuh"
#include "kernels/cuda/ops.h"
#include "kernels/cuda/reduce.cuh"
#include "kernels/moment_rounding.h"

namespace tri::cuda {
namespace {

// T: the type of the moments.
template <class T>
struct MomentPointers {
  float *master, *grad;
  T *exp_avg, *exp_avg_sq;
  const float *grad_scale, *decay;
  const int32_t* block_tensor;
  float beta1, beta2, eps, correct1, correct2;
  const TensorDraws* draws;
  int64_t first_block;
  uint64_t step_key;
};

template <class T>
MomentPointers<T> pointers_of(const Moments& m) {
  return {pointer<float>(m.master),
          pointer<float>(m.grad),
          pointer<T>(m.exp_avg),
          pointer<T>(m.exp_avg_sq),
          pointer<float>(m.grad_scale),
          pointer<float>(m.decay),
          pointer<int32_t>(m.block_tensor),
          m.beta1,
          m.beta2,
          m.eps,
          1.0f / m.bias_correction1,
          1.0f / m.bias_correction2,
          pointer<TensorDraws>(m.rounding.draws),
          m.rounding.first_block,
          m.rounding.step_key};
}

// A thread's number of elements, four or eight: 16 bytes of the moments.
template <class T>
constexpr int kElements = 16 / sizeof(T);
template <class T>
__device__ int64_t first_element() {
  return (blockIdx.x * int64_t{kThreads} + threadIdx.x) * kElements<T>;
}

// The step's direction. With bf16 moments an error of 1 ulp is negligible, so the approximate square root and
// reciprocal of the special-function units are used, which take a fifth of the instructions of the IEEE ones.
__device__ float ratio(const MomentPointers<float>& p, float m, float v) {
  return m * p.correct1 / (sqrtf(v * p.correct2) + p.eps);
}
__device__ float ratio(const MomentPointers<__nv_bfloat16>& p, float m, float v) {
  float root, reciprocal;
  asm("sqrt.approx.ftz.f32 %0, %1;" : "=f"(root) : "f"(v * p.correct2));
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(reciprocal) : "f"(root + p.eps));
  return m * p.correct1 * reciprocal;
}

// The moments of a thread's elements in storage format.
template <class T>
struct Kept {
  Pack<T> m, v;
};
__device__ Kept<float> round_moments(const MomentPointers<float>&, int64_t, int, const float (&m)[4],
                                     const float (&v)[4]) {
  return {pack_floats<float>(m), pack_floats<float>(v)};
}
__device__ Kept<__nv_bfloat16> round_moments(const MomentPointers<__nv_bfloat16>& p, int64_t first, int tensor,
                                             const float (&m)[8], const float (&v)[8]) {
  const TensorDraws of_tensor = p.draws[tensor];
  const auto quad = static_cast<uint32_t>((p.first_block - of_tensor.first_block) * (kBlock / 4) + first / 4);
  const auto both = [](float low, uint32_t low_draw, float high, uint32_t high_draw) {
    return round_stochastically(low, low_draw) | static_cast<uint32_t>(round_stochastically(high, high_draw)) << 16;
  };
  uint32_t words_m[4], words_v[4];
#pragma unroll
  for (int q = 0; q < 2; ++q) {
    const MomentDraw draw = draw_of(of_tensor.key(), p.step_key, of_tensor.global_quad(quad + q));
#pragma unroll
    for (int i = 0; i < 4; i += 2) {
      const int at = 4 * q + i;
      words_m[at / 2] = both(m[at], draw.exp_avg(i), m[at + 1], draw.exp_avg(i + 1));
      words_v[at / 2] = both(v[at], draw.exp_avg_sq(i), v[at + 1], draw.exp_avg_sq(i + 1));
    }
  }
  Kept<__nv_bfloat16> kept;
  memcpy(&kept.m, words_m, sizeof words_m);
  memcpy(&kept.v, words_v, sizeof words_v);
  return kept;
}

// Updates both moments of a thread's elements; computes their weights and directions. Returns false in padding, and if
// the gradients are not finite, so that nothing may change. That is checked last, so that no load waits for another
// one.
template <class T, int N = kElements<T>>
__device__ bool update_moments(const MomentPointers<T>& p, int64_t first, float (&w)[N], float (&d)[N]) {
  float g[N], m[N], v[N];
  unpack(load_pack<N>(p.master + first), w);
  unpack(load_pack<N>(p.grad + first), g);
  unpack(load_pack<N>(p.exp_avg + first), m);
  unpack(load_pack<N>(p.exp_avg_sq + first), v);
  const int owner = p.block_tensor[first / kBlock], tensor = max(owner, 0);
  const float scale = p.grad_scale[0], decay = p.decay[tensor];
#pragma unroll
  for (int i = 0; i < N; ++i) {
    g[i] *= scale;
    m[i] = p.beta1 * m[i] + (1.0f - p.beta1) * g[i];
    v[i] = p.beta2 * v[i] + (1.0f - p.beta2) * g[i] * g[i];
    d[i] = ratio(p, m[i], v[i]) + fmaxf(decay, 0.0f) * w[i];
  }
  const Kept<T> kept = round_moments(p, first, tensor, m, v);
  if (owner < 0 || isnan(scale)) return false;
  store_pack(p.exp_avg + first, kept.m);
  store_pack(p.exp_avg_sq + first, kept.v);
  return true;
}

// w -= step · d; also writes the copy in compute precision.
template <int N>
__device__ void step_weights(float* master, __nv_bfloat16* param, int64_t first, float (&w)[N], const float (&d)[N],
                             float step) {
#pragma unroll
  for (int i = 0; i < N; ++i) w[i] -= step * d[i];
  store_pack(master + first, pack_floats<float>(w));
  if (param != nullptr) store_pack(param + first, pack_floats<__nv_bfloat16>(w));
}

template <class T, bool kQuantized>
__global__ void adamw_kernel(MomentPointers<T> p, __nv_bfloat16* param, SliceWeights quantized, int64_t n, float lr) {
  const int64_t first = first_element<T>();
  float w[kElements<T>], d[kElements<T>];
  if (first < n && update_moments(p, first, w, d)) step_weights(p.master, param, first, w, d, lr);
  if constexpr (kQuantized) encode_weights(quantized, first, first < n ? p.block_tensor[first / kBlock] : -1, w);
}

// The same with few, large blocks, for AdamwUpdate::alongside.
template <class T>
constexpr int kAlongsideThreads = sizeof(T) == 4 ? 1024 : 512;  // bf16 moments need more registers
template <class T>
__global__ void __launch_bounds__(kAlongsideThreads<T>)
    adamw_alongside_kernel(MomentPointers<T> p, __nv_bfloat16* param, int64_t n, float lr) {
  const int64_t stride = int64_t{gridDim.x} * kAlongsideThreads<T> * kElements<T>;
  int64_t first = (blockIdx.x * int64_t{kAlongsideThreads<T>} + threadIdx.x) * kElements<T>;
  for (; first < n; first += stride) {
    float w[kElements<T>], d[kElements<T>];
    if (update_moments(p, first, w, d)) step_weights(p.master, param, first, w, d, lr);
  }
}

template <class T>
__global__ void lamb_direction_kernel(MomentPointers<T> p, int64_t n) {
  const int64_t first = first_element<T>();
  float w[kElements<T>], d[kElements<T>];
  if (first < n && update_moments(p, first, w, d)) store_pack(p.grad + first, pack_floats<float>(d));
}

template <bool kQuantized>
__global__ void lamb_apply_kernel(float* master, __nv_bfloat16* param, SliceWeights quantized, const float* direction,
                                  const float* weight_sumsq, const float* direction_sumsq, const float* grad_scale,
                                  const float* decay, const int32_t* block_tensor, int64_t n, float lr) {
  const int64_t first = first_element<float>();
  const int tensor = first < n ? block_tensor[first / kBlock] : -1;
  float w[4], d[4];
  if (tensor >= 0) unpack(load_pack<4>(master + first), w);
  if (tensor >= 0 && !isnan(grad_scale[0])) {
    const bool adapts = decay[tensor] >= 0 && weight_sumsq[tensor] > 0 && direction_sumsq[tensor] > 0;
    const float trust = adapts ? sqrtf(weight_sumsq[tensor]) / sqrtf(direction_sumsq[tensor]) : 1.0f;
    unpack(load_pack<4>(direction + first), d);
    step_weights(master, param, first, w, d, lr * trust);
  }
  if constexpr (kQuantized) encode_weights(quantized, first, tensor, w);
}

__global__ void average_weights_kernel(float* ema, const float* master, const float* grad_scale, int64_t n,
                                       float step) {
  const int64_t first = first_element<float>();
  if (first >= n) return;
  float e[4], w[4];
  unpack(load_pack<4>(ema + first), e);
  unpack(load_pack<4>(master + first), w);
#pragma unroll
  for (int i = 0; i < 4; ++i) e[i] += step * (w[i] - e[i]);
  if (!isnan(grad_scale[0])) store_pack(ema + first, pack_floats<float>(e));
}

// Sums of squares, first pass: each warp adds kRunBlocks blocks of kBlock elements, four per lane. A part of a tensor
// that reaches the end of a warp's run goes to runs[]; a tensor's last part, if it ends inside a run, to its tail.
constexpr int kRunBlocks = 16;
constexpr int kTensorThreads = 1024;

struct TensorRange {
  int64_t first, last;  // blocks [first, last) of the slice; equal: none
  double tail;
};

__global__ void run_sumsq_kernel(double* runs, TensorRange* tensors, const float* inp, const int32_t* block_tensor,
                                 int64_t blocks) {
  static_assert(kBlock == 32 * 4);
  const int64_t run = (blockIdx.x * int64_t{kThreads} + threadIdx.x) / 32, begin = run * kRunBlocks;
  if (begin >= blocks) return;
  const int64_t end = begin + kRunBlocks < blocks ? begin + kRunBlocks : blocks;
  const int lane = threadIdx.x % 32;
  const auto square = [&](int64_t block) {
    const float4 x = reinterpret_cast<const float4*>(inp)[block * 32 + lane];
    return double{x.x} * x.x + double{x.y} * x.y + double{x.z} * x.z + double{x.w} * x.w;
  };
  const auto warp_total = [](double sum) {
    for (int offset = 16; offset > 0; offset /= 2) sum += __shfl_xor_sync(0xFFFFFFFFu, sum, offset);
    return sum;
  };
  double sum = 0;
  // The fast path: most runs are inside one tensor.
  const int64_t mine = begin + lane % kRunBlocks;
  const int owner = mine < end ? block_tensor[mine] : -1;
  const int before = begin > 0 ? block_tensor[begin - 1] : -1, after = end < blocks ? block_tensor[end] : -1;
  const int tensor = __shfl_sync(0xFFFFFFFFu, owner, 0);
  if (__all_sync(0xFFFFFFFFu, owner == tensor) && tensor >= 0 && before == tensor && after == tensor) {
#pragma unroll
    for (int block = 0; block < kRunBlocks; ++block) sum += square(begin + block);
    sum = warp_total(sum);
    if (lane == 0) runs[run] = sum;
    return;
  }
  for (int64_t block = begin; block < end; ++block) {
    const int tensor = block_tensor[block];
    if (tensor < 0) continue;
    const bool first = block == 0 || block_tensor[block - 1] != tensor;
    const bool last = block + 1 == blocks || block_tensor[block + 1] != tensor;
    if (first || block == begin) sum = 0;
    sum += square(block);
    if (first && lane == 0) tensors[tensor].first = block;
    if (!last && block + 1 < end) continue;
    const double total = warp_total(sum);
    if (lane != 0) continue;
    if (block == begin + kRunBlocks - 1)
      runs[run] = total;
    else
      tensors[tensor].tail = total;
    if (last) tensors[tensor].last = block + 1;
  }
}

// Second pass: one block per tensor adds its runs in a fixed order.
__global__ void __launch_bounds__(kTensorThreads)
    tensor_sumsq_kernel(float* sumsq, const double* runs, const TensorRange* tensors) {
  __shared__ double part[kTensorThreads];
  const TensorRange range = tensors[blockIdx.x];
  if (range.first == range.last) return;
  double sum = 0;
#pragma unroll 8
  for (int64_t run = range.first / kRunBlocks + threadIdx.x; run < range.last / kRunBlocks; run += kTensorThreads)
    sum += runs[run];
  part[threadIdx.x] = sum;
  __syncthreads();
  for (int half = kTensorThreads / 2; half > 0; half /= 2) {
    if (static_cast<int>(threadIdx.x) < half) part[threadIdx.x] += part[threadIdx.x + half];
    __syncthreads();
  }
  if (threadIdx.x == 0)
    sumsq[blockIdx.x] += static_cast<float>(part[0] + (range.last % kRunBlocks == 0 ? 0.0 : range.tail));
}

__global__ void weighted_sum_kernel(float* out, const float* inp, const float* weight, int64_t count) {
  __shared__ double part[kThreads];
  double sum = 0;
  for (int64_t i = threadIdx.x; i < count; i += kThreads) sum += double{weight[i]} * inp[i];
  part[threadIdx.x] = sum;
  __syncthreads();
  if (threadIdx.x != 0) return;
  double total = 0;
  for (int i = 0; i < kThreads; ++i) total += part[i];
  out[0] += static_cast<float>(total);
}

__global__ void clip_scale_kernel(float* scale, float* norm, const float* norm_sq, const float* loss, float max_norm,
                                  float norm_limit, float loss_limit) {
  const float value = sqrtf(norm_sq[0]);
  norm[0] = value;
  const bool spike = value > norm_limit || (loss != nullptr && loss[0] > loss_limit);
  scale[0] = !isfinite(value) || spike ? NAN : max_norm == 0.0f || value <= max_norm ? 1.0f : max_norm / value;
}

}  // namespace

void adamw_update(const AdamwUpdate& a, CudaStream& stream) {
  const int64_t n = a.moments.master.numel();
  if (n == 0) return;
  dispatch(a.moments.exp_avg.dtype, [&](auto type) {
    using T = decltype(type);
    if (a.alongside) {
      // Each block has a multiprocessor of its own, since two would need more shared memory than there is.
      const auto kernel = adamw_alongside_kernel<T>;
      const auto blocks = static_cast<unsigned>(multiprocessors_alongside(stream));
      const int64_t shared = stream.context().properties().max_shared_bytes / 2 + 1024;
      TRI_CUDA(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(shared)));
      kernel<<<blocks, kAlongsideThreads<T>, static_cast<size_t>(shared), stream>>>(
          pointers_of<T>(a.moments), pointer<__nv_bfloat16>(a.param), n, a.lr);
      return;
    }
    const auto kernel = a.quantized.out.empty() ? adamw_kernel<T, false> : adamw_kernel<T, true>;
    kernel<<<blocks_for(n / kElements<T>), kThreads, 0, stream>>>(
        pointers_of<T>(a.moments), pointer<__nv_bfloat16>(a.param), slice_weights(a.quantized), n, a.lr);
  });
  TRI_CUDA_LAUNCH("adamw_update");
}

void lamb_direction(const LambDirection& a, CudaStream& stream) {
  const int64_t n = a.moments.master.numel();
  if (n == 0) return;
  dispatch(a.moments.exp_avg.dtype, [&](auto type) {
    using T = decltype(type);
    lamb_direction_kernel<<<blocks_for(n / kElements<T>), kThreads, 0, stream>>>(pointers_of<T>(a.moments), n);
  });
  TRI_CUDA_LAUNCH("lamb_direction");
}

void lamb_apply(const LambApply& a, CudaStream& stream) {
  const int64_t n = a.master.numel();
  if (n == 0) return;
  const auto kernel = a.quantized.out.empty() ? lamb_apply_kernel<false> : lamb_apply_kernel<true>;
  kernel<<<blocks_for(n / kElements<float>), kThreads, 0, stream>>>(
      pointer<float>(a.master), pointer<__nv_bfloat16>(a.param), slice_weights(a.quantized),
      pointer<float>(a.direction), pointer<float>(a.weight_sumsq), pointer<float>(a.direction_sumsq),
      pointer<float>(a.grad_scale), pointer<float>(a.decay), pointer<int32_t>(a.block_tensor), n, a.lr);
  TRI_CUDA_LAUNCH("lamb_apply");
}

void average_weights(const AverageWeights& a, CudaStream& stream) {
  const int64_t n = a.master.numel();
  if (n == 0) return;
  average_weights_kernel<<<blocks_for(n / kElements<float>), kThreads, 0, stream>>>(
      pointer<float>(a.ema), pointer<float>(a.master), pointer<float>(a.grad_scale), n, 1.0f - a.decay);
  TRI_CUDA_LAUNCH("average_weights");
}

void tensor_sumsq(const TensorSumsq& a, CudaStream& stream) {
  const int64_t blocks = a.inp.numel() / kBlock, num_runs = (blocks + kRunBlocks - 1) / kRunBlocks;
  if (blocks == 0) return;
  const size_t tensor_bytes = sizeof(TensorRange) * static_cast<size_t>(a.sumsq.numel());
  auto* tensors = static_cast<TensorRange*>(
      workspace(stream, Scratch::kSumsq, tensor_bytes + sizeof(double) * static_cast<size_t>(num_runs)));
  auto* runs = reinterpret_cast<double*>(reinterpret_cast<char*>(tensors) + tensor_bytes);
  TRI_CUDA(cudaMemsetAsync(tensors, 0, tensor_bytes, stream));
  run_sumsq_kernel<<<blocks_for(num_runs * 32), kThreads, 0, stream>>>(runs, tensors, pointer<float>(a.inp),
                                                                       pointer<int32_t>(a.block_tensor), blocks);
  tensor_sumsq_kernel<<<static_cast<unsigned>(a.sumsq.numel()), kTensorThreads, 0, stream>>>(pointer<float>(a.sumsq),
                                                                                             runs, tensors);
  TRI_CUDA_LAUNCH("tensor_sumsq");
}

void weighted_sum(const WeightedSum& a, CudaStream& stream) {
  weighted_sum_kernel<<<1, kThreads, 0, stream>>>(pointer<float>(a.out), pointer<float>(a.inp),
                                                  pointer<float>(a.weight), a.inp.numel());
  TRI_CUDA_LAUNCH("weighted_sum");
}

void clip_scale(const ClipScale& a, CudaStream& stream) {
  clip_scale_kernel<<<1, 1, 0, stream>>>(pointer<float>(a.scale), pointer<float>(a.norm), pointer<float>(a.norm_sq),
                                         pointer<float>(a.loss), a.max_norm, a.norm_limit, a.loss_limit);
  TRI_CUDA_LAUNCH("clip_scale");
}

}  // namespace tri::cuda
