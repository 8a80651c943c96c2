// The router of a mixture of experts: which experts compute a token, its weights, the losses' statistics and gradients.
// Formulas and shapes: kernels/router.h.
// Mapping: one warp per row, a lane has experts lane, lane + 32, ...; statistics: sums of each block's rows, which a
// second kernel adds. The order of sums does not depend on the GPU. Bound: 4 · E bytes a row; with few rows, latency.
// Scores of sigmoids are computed in fp64, so that choices equal the reference's. Reference: kernels/cpu/router.cpp.
#include <algorithm>

#include "kernels/cuda/check.h"
#include "kernels/cuda/dispatch.h"
#include "kernels/cuda/ops.h"
#include "kernels/cuda/reduce.cuh"
#include "kernels/cuda/workspace.h"
#include "kernels/router.h"

namespace tri::cuda {
namespace {

constexpr int kWarps = 8, kBlockThreads = 32 * kWarps, kMostBlocks = 256;
constexpr float kSmall = 1e-20f;  // keeps quotients of sigmoids finite

struct Rows {
  int rows, experts, per_token;
  bool sigmoid, renormalize;
  float scale;
  int groups, top_groups;
};

Rows rows_of(const Tensor& logits, const Tensor& experts, const RouterRule& rule) {
  return {static_cast<int>(logits[0]),
          static_cast<int>(logits[1]),
          static_cast<int>(experts[1]),
          rule.kind == Router::kSigmoid,
          rule.renormalize,
          rule.scale,
          rule.groups,
          rule.top_groups};
}

// Maps floats to integers of the same order, all greater than 0; NaN counts as -inf, -0 as 0.
__device__ __forceinline__ uint32_t ordered(float x) {
  if (isnan(x)) x = -INFINITY;
  const uint32_t bits = __float_as_uint(x == 0.0f ? 0.0f : x);
  return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}

// Returns the number of the largest of the warp's keys, key i of a lane having the number lane + 32 · i; of equal keys
// the lowest number; takes it from the keys by setting it to 0.
template <int kPerLane>
__device__ __forceinline__ int take_largest(uint32_t (&keys)[kPerLane], int lane) {
  uint32_t most = 0;
  int number = 0;
#pragma unroll
  for (int i = 0; i < kPerLane; ++i)
    if (keys[i] > most) most = keys[i], number = lane + 32 * i;
#pragma unroll
  for (int offset = 16; offset > 0; offset /= 2) {
    const uint32_t other = __shfl_xor_sync(0xFFFFFFFFu, most, offset);
    const int other_number = __shfl_xor_sync(0xFFFFFFFFu, number, offset);
    if (other > most || (other == most && other_number < number)) most = other, number = other_number;
  }
#pragma unroll
  for (int i = 0; i < kPerLane; ++i)
    if (number == lane + 32 * i) keys[i] = 0;
  return number;
}

// Returns, in every lane, the value of this number, value i of a lane having the number lane + 32 · i.
template <int kPerLane>
__device__ __forceinline__ float value_of(const float (&values)[kPerLane], int number, int lane) {
  float mine = 0;
#pragma unroll
  for (int i = 0; i < kPerLane; ++i) mine = number == lane + 32 * i ? values[i] : mine;
  return __shfl_sync(0xFFFFFFFFu, mine, number % 32);
}

// In fp64; not inlined, so that loops over a lane's experts are unrolled.
__device__ __noinline__ float sigmoid(float x) {
  return static_cast<float>(1.0 / (1.0 + exp(-static_cast<double>(x))));
}

// The scores of a row.
template <int kPerLane>
struct Scores {
  float logit[kPerLane], score[kPerLane], softmax[kPerLane];  // 0 beyond the experts
  float total = 1.0f;                                         // shares are score / total
  float z = 0.0f;

  __device__ __forceinline__ void compute(const float* logits, const Rows& d, int lane, bool with_softmax) {
#pragma unroll
    for (int i = 0; i < kPerLane; ++i) logit[i] = lane + 32 * i < d.experts ? logits[lane + 32 * i] : -INFINITY;
    if (!d.sigmoid || with_softmax) {
      float most = logit[0], sum = 0;
#pragma unroll
      for (int i = 1; i < kPerLane; ++i) most = fmaxf(most, logit[i]);
      most = warp_max(most);
#pragma unroll
      for (int i = 0; i < kPerLane; ++i) {
        softmax[i] = lane + 32 * i < d.experts ? expf(logit[i] - most) : 0.0f;
        sum += softmax[i];
      }
      sum = warp_sum(sum);
#pragma unroll
      for (int i = 0; i < kPerLane; ++i) softmax[i] /= sum;
      z = most + logf(sum);
    }
    if (!d.sigmoid) {
#pragma unroll
      for (int i = 0; i < kPerLane; ++i) score[i] = softmax[i];
      return;
    }
    float sum = 0;
#pragma unroll
    for (int i = 0; i < kPerLane; ++i) {
      score[i] = lane + 32 * i < d.experts ? sigmoid(logit[i]) : 0.0f;
      sum += score[i];
    }
    total = warp_sum(sum) + kSmall;
  }
};

// Sets the keys of experts outside of the best groups to 0. `choice` holds the row's values, `sums` a flag per group.
template <int kPerLane>
__device__ __forceinline__ void keep_best_groups(uint32_t (&keys)[kPerLane], const float (&values)[kPerLane],
                                                 const Rows& d, int lane, float* choice, float* sums) {
  const int size = d.experts / d.groups;
#pragma unroll
  for (int i = 0; i < kPerLane; ++i)
    if (lane + 32 * i < d.experts) choice[lane + 32 * i] = values[i];
  __syncwarp();
  uint32_t group_keys[kPerLane];
#pragma unroll
  for (int i = 0; i < kPerLane; ++i) {
    const int group = lane + 32 * i;
    group_keys[i] = 0;
    if (group >= d.groups) continue;
    float first = -INFINITY, second = -INFINITY;
    for (int e = group * size; e < (group + 1) * size; ++e) {
      const float x = choice[e];
      second = fmaxf(second, fminf(first, x));
      first = fmaxf(first, x);
    }
    group_keys[i] = ordered(size > 1 ? first + second : first);
    sums[group] = 0.0f;
  }
  __syncwarp();
  for (int k = 0; k < d.top_groups; ++k) {
    const int group = take_largest(group_keys, lane);
    if (lane == 0) sums[group] = 1.0f;
  }
  __syncwarp();
#pragma unroll
  for (int i = 0; i < kPerLane; ++i)
    if (lane + 32 * i < d.experts && sums[(lane + 32 * i) / size] == 0.0f) keys[i] = 0;
  __syncwarp();
}

// Writes a block's sums to partial: E + 1 of shares and z², then E counts.
template <int kPerLane>
__global__ void __launch_bounds__(kBlockThreads)
    router_forward_kernel(int32_t* experts, float* weights, float* partial, const float* logits, const float* bias,
                          const Rows d) {
  extern __shared__ float shared[];  // a warp's choices and flags of groups; later its sums
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const int columns = 2 * d.experts + 1;
  float* const choice = shared + warp * columns;
  float shares[kPerLane] = {}, counts[kPerLane] = {}, squares = 0;
  Scores<kPerLane> s;
  for (int r = static_cast<int>(blockIdx.x) * kWarps + warp; r < d.rows; r += static_cast<int>(gridDim.x) * kWarps) {
    s.compute(logits + int64_t{r} * d.experts, d, lane, true);
    uint32_t keys[kPerLane];
    float values[kPerLane];
#pragma unroll
    for (int i = 0; i < kPerLane; ++i) {
      const int e = lane + 32 * i;
      values[i] = d.sigmoid ? s.score[i] : s.logit[i];
      if (bias != nullptr && e < d.experts) values[i] += bias[e];
      if (isnan(values[i])) values[i] = -INFINITY;
      keys[i] = e < d.experts ? ordered(values[i]) : 0;
    }
    if (d.groups > 1) keep_best_groups(keys, values, d, lane, choice, choice + d.experts);
    int chosen = 0;
    float score = 0;  // of this lane's choice
    for (int k = 0; k < d.per_token; ++k) {
      const int e = take_largest(keys, lane);
      const float of_e = value_of(s.score, e, lane);
      if (lane == k) chosen = e, score = of_e;
#pragma unroll
      for (int i = 0; i < kPerLane; ++i)
        if (e == lane + 32 * i) counts[i] += 1.0f;
    }
    const float sum = d.renormalize ? warp_sum(score) + kSmall : 1.0f;
    if (lane < d.per_token) {
      experts[int64_t{r} * d.per_token + lane] = chosen;
      weights[int64_t{r} * d.per_token + lane] = d.scale * score / sum;
    }
#pragma unroll
    for (int i = 0; i < kPerLane; ++i) shares[i] += s.score[i] / s.total;
    squares += s.z * s.z;
  }
#pragma unroll
  for (int i = 0; i < kPerLane; ++i)
    if (lane + 32 * i < d.experts) {
      choice[lane + 32 * i] = shares[i];
      choice[d.experts + 1 + lane + 32 * i] = counts[i];
    }
  if (lane == 0) choice[d.experts] = squares;
  __syncthreads();
  for (int c = static_cast<int>(threadIdx.x); c < columns; c += kBlockThreads) {
    float sum = 0;
    for (int w = 0; w < kWarps; ++w) sum += shared[w * columns + c];
    partial[int64_t{blockIdx.x} * columns + c] = sum;
  }
}

// Adds the blocks' sums: a warp per column.
__global__ void router_sums_kernel(float* share_sums, float* counts, const float* partial, int experts, int blocks) {
  const int column = static_cast<int>(blockIdx.x) * kWarps + static_cast<int>(threadIdx.x) / 32;
  const int columns = 2 * experts + 1, lane = static_cast<int>(threadIdx.x) % 32;
  if (column >= columns) return;
  float sum = 0;
  for (int block = lane; block < blocks; block += 32) sum += partial[int64_t{block} * columns + column];
  sum = warp_sum(sum);
  if (lane == 0) (column <= experts ? share_sums[column] : counts[column - experts - 1]) = sum;
}

template <int kPerLane, class T>
__global__ void __launch_bounds__(kBlockThreads)
    router_backward_kernel(T* dlogits, const float* dweights, const float* logits, const int32_t* experts,
                           const float* counts, const Rows d, float aux_scale, float z_scale) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int r = static_cast<int>(blockIdx.x) * kWarps + static_cast<int>(threadIdx.x) / 32;
  if (r >= d.rows) return;
  Scores<kPerLane> s;
  s.compute(logits + int64_t{r} * d.experts, d, lane, z_scale != 0.0f);
  const int chosen = lane < d.per_token ? experts[int64_t{r} * d.per_token + lane] : 0;
  const float dweight = lane < d.per_token ? dweights[int64_t{r} * d.per_token + lane] : 0.0f;
  // w = scale · s / sum: the gradient through s and, if renormalized, through the sum.
  float score = 0;
  for (int k = 0; k < d.per_token; ++k) {
    const float of_k = value_of(s.score, __shfl_sync(0xFFFFFFFFu, chosen, k), lane);
    if (lane == k) score = of_k;
  }
  float sum = 1.0f, mean = 0.0f;
  if (d.renormalize) {
    sum = warp_sum(score) + kSmall;
    mean = warp_sum(dweight * score / sum);
  }
  float dscores[kPerLane] = {};
  const float mine = d.scale / sum * (dweight - mean);
  for (int k = 0; k < d.per_token; ++k) {
    const int e = __shfl_sync(0xFFFFFFFFu, chosen, k);
    const float of_k = __shfl_sync(0xFFFFFFFFu, mine, k);
#pragma unroll
    for (int i = 0; i < kPerLane; ++i)
      if (e == lane + 32 * i) dscores[i] += of_k;
  }
  if (aux_scale != 0.0f) {
    float loads[kPerLane], share_mean = 0;
#pragma unroll
    for (int i = 0; i < kPerLane; ++i) {
      loads[i] = lane + 32 * i < d.experts ? aux_scale * counts[lane + 32 * i] : 0.0f;
      share_mean += loads[i] * s.score[i] / s.total;
    }
    share_mean = d.sigmoid ? warp_sum(share_mean) : 0.0f;  // the gradient of the softmax already contains it
#pragma unroll
    for (int i = 0; i < kPerLane; ++i) dscores[i] += (loads[i] - share_mean) / s.total;
  }
  float through = 0;
  if (!d.sigmoid) {
#pragma unroll
    for (int i = 0; i < kPerLane; ++i) through += dscores[i] * s.score[i];
    through = warp_sum(through);
  }
#pragma unroll
  for (int i = 0; i < kPerLane; ++i) {
    const int e = lane + 32 * i;
    if (e >= d.experts) continue;
    float gradient = s.score[i] * (dscores[i] - through);
    if (d.sigmoid) gradient = dscores[i] * s.score[i] / (1.0f + expf(s.logit[i]));  // 1 - s = 1 / (1 + e^x)
    if (z_scale != 0.0f) gradient += 2.0f * z_scale * s.z * s.softmax[i];
    dlogits[int64_t{r} * d.experts + e] = from_float<T>(gradient);
  }
}

__device__ double block_total(double value) {
  __shared__ double part[kBlockThreads];
  part[threadIdx.x] = value;
  __syncthreads();
  for (int half = kBlockThreads / 2; half > 0; half /= 2) {
    if (static_cast<int>(threadIdx.x) < half) part[threadIdx.x] += part[threadIdx.x + half];
    __syncthreads();
  }
  return part[0];
}

__global__ void __launch_bounds__(kBlockThreads)
    router_totals_kernel(float* load, float* losses, const float* counts, const float* all_counts,
                         const float* share_sums, int experts, float aux_scale, float z_scale) {
  double sum = 0;
  for (int e = static_cast<int>(threadIdx.x); e < experts; e += kBlockThreads) {
    load[e] += counts[e];
    sum += static_cast<double>(all_counts[e]) * static_cast<double>(share_sums[e]);
  }
  sum = block_total(sum);
  if (threadIdx.x == 0) {
    losses[0] += static_cast<float>(static_cast<double>(aux_scale) * sum);
    losses[1] += z_scale * share_sums[experts];
  }
}

__global__ void __launch_bounds__(kBlockThreads)
    router_bias_update_kernel(float* bias, const float* load, const float* grad_scale, int experts, float rate) {
  if (isnan(grad_scale[0])) return;
  double sum = 0;
  for (int e = static_cast<int>(threadIdx.x); e < experts; e += kBlockThreads) sum += static_cast<double>(load[e]);
  const double mean = block_total(sum) / experts;
  for (int e = static_cast<int>(threadIdx.x); e < experts; e += kBlockThreads) {
    const double mine = static_cast<double>(load[e]);
    if (mine != mean) bias[e] += mine < mean ? rate : -rate;
  }
}

// Calls f(std::integral_constant) with the experts of a lane, rounded up to a power of two.
template <class F>
void with_experts_per_lane(int experts, F&& f) {
  static_assert(kMaxRouterExperts == 32 * 16);
  if (experts <= 32) return f(std::integral_constant<int, 1>{});
  if (experts <= 64) return f(std::integral_constant<int, 2>{});
  if (experts <= 128) return f(std::integral_constant<int, 4>{});
  if (experts <= 256) return f(std::integral_constant<int, 8>{});
  f(std::integral_constant<int, 16>{});
}

}  // namespace

void router_forward(const RouterForward& a, CudaStream& stream) {
  const Rows d = rows_of(a.logits, a.experts, a.rule);
  const int columns = 2 * d.experts + 1;
  const int blocks = static_cast<int>(std::clamp<int64_t>((a.logits[0] + kWarps - 1) / kWarps, 1, kMostBlocks));
  auto* partial = static_cast<float*>(
      workspace(stream, Scratch::kColumnSums, sizeof(float) * static_cast<size_t>(blocks * columns)));
  const size_t shared = sizeof(float) * static_cast<size_t>(kWarps * columns);
  with_experts_per_lane(d.experts, [&](auto per_lane) {
    router_forward_kernel<per_lane()><<<static_cast<unsigned>(blocks), kBlockThreads, shared, stream>>>(
        pointer<int32_t>(a.experts), pointer<float>(a.weights), partial, pointer<float>(a.logits),
        pointer<float>(a.bias), d);
  });
  router_sums_kernel<<<static_cast<unsigned>((columns + kWarps - 1) / kWarps), kBlockThreads, 0, stream>>>(
      pointer<float>(a.share_sums), pointer<float>(a.counts), partial, d.experts, blocks);
  TRI_CUDA_LAUNCH("router_forward");
}

void router_backward(const RouterBackward& a, CudaStream& stream) {
  if (a.logits[0] == 0) return;
  const Rows d = rows_of(a.logits, a.experts, a.rule);
  const auto blocks = static_cast<unsigned>((a.logits[0] + kWarps - 1) / kWarps);
  with_experts_per_lane(d.experts, [&](auto per_lane) {
    dispatch(a.dlogits.dtype, [&](auto type) {
      using T = decltype(type);
      router_backward_kernel<per_lane(), T><<<blocks, kBlockThreads, 0, stream>>>(
          pointer<T>(a.dlogits), pointer<float>(a.dweights), pointer<float>(a.logits), pointer<int32_t>(a.experts),
          pointer<float>(a.counts), d, a.aux_scale, a.z_scale);
    });
  });
  TRI_CUDA_LAUNCH("router_backward");
}

void router_totals(const RouterTotals& a, CudaStream& stream) {
  router_totals_kernel<<<1, kBlockThreads, 0, stream>>>(
      pointer<float>(a.load), pointer<float>(a.losses), pointer<float>(a.counts), pointer<float>(a.all_counts),
      pointer<float>(a.share_sums), static_cast<int>(a.counts.numel()), a.aux_scale, a.z_scale);
  TRI_CUDA_LAUNCH("router_totals");
}

void router_bias_update(const RouterBiasUpdate& a, CudaStream& stream) {
  router_bias_update_kernel<<<1, kBlockThreads, 0, stream>>>(pointer<float>(a.bias), pointer<float>(a.load),
                                                             pointer<float>(a.grad_scale),
                                                             static_cast<int>(a.bias.numel()), a.rate);
  TRI_CUDA_LAUNCH("router_bias_update");
}

}  // namespace tri::cuda
