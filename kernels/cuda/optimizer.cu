// AdamW, LAMB and the sums they need, over flat slices: formulas in kernels/optimizer.h.
// Mapping of the updates: a thread four elements (16 bytes of fp32); a block of kBlock elements has one owner, so a
// thread looks it up once. Moments in bf16 take one draw of random numbers for the four (Philox, some 20 integer
// instructions an element, beside the memory's time). Sums of squares: a warp a run of blocks into scratch (double),
// then one block a tensor adds its runs in a fixed order.
// Bound: memory; AdamW reads 16 and writes 12 bytes an element (12 and 8 with moments in bf16), 2 for the bf16 copy.
// Mirror: kernels/cpu/optimizer.cpp.
#include "kernels/core/dims.h"
#include "kernels/cuda/device_math.cuh"
#include "kernels/cuda/dispatch.h"
#include "kernels/cuda/ops.h"
#include "kernels/cuda/reduce.cuh"
#include "kernels/moment_rounding.h"

namespace tri::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kPack = 4;
unsigned blocks_for(int64_t threads) { return static_cast<unsigned>((threads + kThreads - 1) / kThreads); }

// T: of the moments.
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

template <class T>
__device__ float4 load_four(const T* values, int64_t pack) {
  const Pack<T, kPack> four = load_pack<kPack>(values + pack * kPack);
  return {to_float(four.item[0]), to_float(four.item[1]), to_float(four.item[2]), to_float(four.item[3])};
}

// Stores the moments of four elements of `tensor`.
__device__ void store_moments(const MomentPointers<float>& p, int64_t pack, int, float4 m, float4 v) {
  reinterpret_cast<float4*>(p.exp_avg)[pack] = m;
  reinterpret_cast<float4*>(p.exp_avg_sq)[pack] = v;
}
__device__ void store_moments(const MomentPointers<__nv_bfloat16>& p, int64_t pack, int tensor, float4 m, float4 v) {
  const TensorDraws of_tensor = p.draws[tensor];
  constexpr int64_t kQuads = kBlock / kPack;
  const auto quad = static_cast<uint32_t>((p.first_block - of_tensor.first_block) * kQuads + pack);
  const MomentDraw draw = draw_of(of_tensor.key(), p.step_key, of_tensor.global_quad(quad));
  const auto both = [](float low, uint32_t low_draw, float high, uint32_t high_draw) {
    return round_stochastically(__float_as_uint(low), low_draw) |
           static_cast<uint32_t>(round_stochastically(__float_as_uint(high), high_draw)) << 16;
  };
  reinterpret_cast<uint2*>(p.exp_avg)[pack] = {both(m.x, draw.exp_avg(0), m.y, draw.exp_avg(1)),
                                               both(m.z, draw.exp_avg(2), m.w, draw.exp_avg(3))};
  reinterpret_cast<uint2*>(p.exp_avg_sq)[pack] = {both(v.x, draw.exp_avg_sq(0), v.y, draw.exp_avg_sq(1)),
                                                  both(v.z, draw.exp_avg_sq(2), v.w, draw.exp_avg_sq(3))};
}

// Updates both moments of four elements of `tensor`; their directions.
template <class T>
__device__ float4 update_moments(const MomentPointers<T>& p, int64_t pack, int tensor, float4 w) {
  const float scale = p.grad_scale[0], decay = p.decay[tensor];
  const float4 g = reinterpret_cast<const float4*>(p.grad)[pack];
  float4 m = load_four(p.exp_avg, pack), v = load_four(p.exp_avg_sq, pack), d;
  const auto element = [&](float w, float g, float& m, float& v, float& d) {
    g *= scale;
    m = p.beta1 * m + (1.0f - p.beta1) * g;
    v = p.beta2 * v + (1.0f - p.beta2) * g * g;
    d = m * p.correct1 / (sqrtf(v * p.correct2) + p.eps) + fmaxf(decay, 0.0f) * w;
  };
  element(w.x, g.x, m.x, v.x, d.x);
  element(w.y, g.y, m.y, v.y, d.y);
  element(w.z, g.z, m.z, v.z, d.z);
  element(w.w, g.w, m.w, v.w, d.w);
  store_moments(p, pack, tensor, m, v);
  return d;
}

// w -= step · d, and the copy in compute precision.
__device__ void step_weights(float* master, __nv_bfloat16* param, int64_t pack, float4 w, float4 d, float step) {
  w.x -= step * d.x;
  w.y -= step * d.y;
  w.z -= step * d.z;
  w.w -= step * d.w;
  reinterpret_cast<float4*>(master)[pack] = w;
  if (param == nullptr) return;
  __nv_bfloat162 copy[2] = {__floats2bfloat162_rn(w.x, w.y), __floats2bfloat162_rn(w.z, w.w)};
  reinterpret_cast<uint2*>(param)[pack] = *reinterpret_cast<uint2*>(copy);
}

// The pack of this thread and its owner; -1 beyond the end and in padding.
__device__ int owner_of(const int32_t* block_tensor, int64_t packs, int64_t& pack) {
  pack = blockIdx.x * int64_t{kThreads} + threadIdx.x;
  return pack < packs ? block_tensor[pack / (kBlock / kPack)] : -1;
}

template <class T>
__global__ void adamw_kernel(MomentPointers<T> p, __nv_bfloat16* param, int64_t packs, float lr) {
  int64_t pack;
  const int tensor = owner_of(p.block_tensor, packs, pack);
  if (tensor < 0 || isnan(p.grad_scale[0])) return;
  const float4 w = reinterpret_cast<float4*>(p.master)[pack];
  step_weights(p.master, param, pack, w, update_moments(p, pack, tensor, w), lr);
}

template <class T>
__global__ void lamb_direction_kernel(MomentPointers<T> p, int64_t packs) {
  int64_t pack;
  const int tensor = owner_of(p.block_tensor, packs, pack);
  if (tensor < 0 || isnan(p.grad_scale[0])) return;
  const float4 w = reinterpret_cast<float4*>(p.master)[pack];
  reinterpret_cast<float4*>(p.grad)[pack] = update_moments(p, pack, tensor, w);
}

__global__ void lamb_apply_kernel(float* master, __nv_bfloat16* param, const float* direction,
                                  const float* weight_sumsq, const float* direction_sumsq, const float* grad_scale,
                                  const float* decay, const int32_t* block_tensor, int64_t packs, float lr) {
  int64_t pack;
  const int tensor = owner_of(block_tensor, packs, pack);
  if (tensor < 0 || isnan(grad_scale[0])) return;
  const bool adapts = decay[tensor] >= 0 && weight_sumsq[tensor] > 0 && direction_sumsq[tensor] > 0;
  const float trust = adapts ? sqrtf(weight_sumsq[tensor]) / sqrtf(direction_sumsq[tensor]) : 1.0f;
  step_weights(master, param, pack, reinterpret_cast<float4*>(master)[pack],
               reinterpret_cast<const float4*>(direction)[pack], lr * trust);
}

// Sums of squares, first pass: a warp adds kRun blocks of kBlock elements, 32 lanes of four. The part of a tensor that
// reaches the end of a warp's run goes to runs[]; a tensor's last part, which ends inside a run, to its own tail.
constexpr int kRun = 16;
constexpr int kTensorThreads = 1024;

struct TensorRange {
  int64_t first, last;  // blocks [first, last) of the slice; equal: none
  double tail;
};

__global__ void run_sumsq_kernel(double* runs, TensorRange* tensors, const float* inp, const int32_t* block_tensor,
                                 int64_t blocks) {
  static_assert(kBlock == 32 * kPack);
  const int64_t run = (blockIdx.x * int64_t{kThreads} + threadIdx.x) / 32, begin = run * kRun;
  if (begin >= blocks) return;
  const int64_t end = begin + kRun < blocks ? begin + kRun : blocks;
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
  // Most runs lie inside one tensor.
  const int64_t mine = begin + lane % kRun;
  const int owner = mine < end ? block_tensor[mine] : -1;
  const int before = begin > 0 ? block_tensor[begin - 1] : -1, after = end < blocks ? block_tensor[end] : -1;
  const int tensor = __shfl_sync(0xFFFFFFFFu, owner, 0);
  if (__all_sync(0xFFFFFFFFu, owner == tensor) && tensor >= 0 && before == tensor && after == tensor) {
#pragma unroll
    for (int block = 0; block < kRun; ++block) sum += square(begin + block);
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
    if (block == begin + kRun - 1)
      runs[run] = total;
    else
      tensors[tensor].tail = total;
    if (last) tensors[tensor].last = block + 1;
  }
}

// Second pass: a block a tensor adds its runs in a fixed order.
__global__ void __launch_bounds__(kTensorThreads)
    tensor_sumsq_kernel(float* sumsq, const double* runs, const TensorRange* tensors) {
  __shared__ double part[kTensorThreads];
  const TensorRange range = tensors[blockIdx.x];
  if (range.first == range.last) return;
  double sum = 0;
#pragma unroll 8
  for (int64_t run = range.first / kRun + threadIdx.x; run < range.last / kRun; run += kTensorThreads) sum += runs[run];
  part[threadIdx.x] = sum;
  __syncthreads();
  for (int half = kTensorThreads / 2; half > 0; half /= 2) {
    if (static_cast<int>(threadIdx.x) < half) part[threadIdx.x] += part[threadIdx.x + half];
    __syncthreads();
  }
  if (threadIdx.x == 0) sumsq[blockIdx.x] += static_cast<float>(part[0] + (range.last % kRun == 0 ? 0.0 : range.tail));
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

__global__ void clip_scale_kernel(float* scale, float* norm, const float* norm_sq, float max_norm) {
  const float value = sqrtf(norm_sq[0]);
  norm[0] = value;
  scale[0] = !isfinite(value) ? NAN : max_norm == 0.0f || value <= max_norm ? 1.0f : max_norm / value;
}

}  // namespace

void adamw_update(const AdamwUpdate& a, CudaStream& stream) {
  const int64_t packs = a.moments.master.numel() / kPack;
  if (packs == 0) return;
  dispatch(a.moments.exp_avg.dtype, [&](auto type) {
    using T = decltype(type);
    adamw_kernel<<<blocks_for(packs), kThreads, 0, stream>>>(pointers_of<T>(a.moments), pointer<__nv_bfloat16>(a.param),
                                                             packs, a.lr);
  });
  TRI_CUDA_LAUNCH("adamw_update");
}

void lamb_direction(const LambDirection& a, CudaStream& stream) {
  const int64_t packs = a.moments.master.numel() / kPack;
  if (packs == 0) return;
  dispatch(a.moments.exp_avg.dtype, [&](auto type) {
    using T = decltype(type);
    lamb_direction_kernel<<<blocks_for(packs), kThreads, 0, stream>>>(pointers_of<T>(a.moments), packs);
  });
  TRI_CUDA_LAUNCH("lamb_direction");
}

void lamb_apply(const LambApply& a, CudaStream& stream) {
  const int64_t packs = a.master.numel() / kPack;
  if (packs == 0) return;
  lamb_apply_kernel<<<blocks_for(packs), kThreads, 0, stream>>>(
      pointer<float>(a.master), pointer<__nv_bfloat16>(a.param), pointer<float>(a.direction),
      pointer<float>(a.weight_sumsq), pointer<float>(a.direction_sumsq), pointer<float>(a.grad_scale),
      pointer<float>(a.decay), pointer<int32_t>(a.block_tensor), packs, a.lr);
  TRI_CUDA_LAUNCH("lamb_apply");
}

void tensor_sumsq(const TensorSumsq& a, CudaStream& stream) {
  const int64_t blocks = a.inp.numel() / kBlock, num_runs = (blocks + kRun - 1) / kRun;
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
                                         a.max_norm);
  TRI_CUDA_LAUNCH("clip_scale");
}

}  // namespace tri::cuda
