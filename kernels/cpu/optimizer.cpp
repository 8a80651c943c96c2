// Optimizer updates, the reference.  Formulas and shapes: kernels/optimizer.h.
// Updates are elementwise over blocks with one owner each, so any division into slices gives the same bits.
// Sums are computed in double, in a fixed order.  Bound: memory.
#include "kernels/optimizer.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <type_traits>

#include "kernels/core/dims.h"
#include "kernels/cpu/dispatch.h"
#include "kernels/cpu/fp8_block.h"
#include "kernels/cpu/ops.h"
#include "kernels/moment_rounding.h"

namespace tri::cpu {
namespace {

// Calls f(first element, tensor) for each block of the slice that is not padding.
template <class F>
void for_each_block(const Tensor& block_tensor, int64_t num_tensors, F f) {
  const int32_t* owners = block_tensor.as<int32_t>();
  for (int64_t block = 0; block < block_tensor.numel(); ++block) {
    const int32_t tensor = owners[block];
    TRI_REQUIRE(tensor >= -1 && tensor < num_tensors, "block {} belongs to tensor {} of {}", block, tensor,
                num_tensors);
    if (tensor >= 0) f(block * kBlock, tensor);
  }
}

// Stores a block's moments in bf16. `first` is an element of the slice.
void store_rounded(const Moments& a, int64_t first, int tensor, const float* exp_avg, const float* exp_avg_sq) {
  bf16* m = a.exp_avg.as<bf16>() + first;
  bf16* v = a.exp_avg_sq.as<bf16>() + first;
  const MomentRounding& rounding = a.rounding;
  const auto& draws = reinterpret_cast<const TensorDraws*>(rounding.draws.as<int32_t>())[tensor];
  const int64_t block = rounding.first_block + first / kBlock - draws.first_block;  // in the tensor-parallel share
  const auto first_quad = static_cast<uint32_t>(block * (kBlock / 4));
  for (uint32_t quad = 0; quad < kBlock / 4; ++quad) {
    const MomentDraw draw = draw_of(draws.key(), rounding.step_key, draws.global_quad(first_quad + quad));
    for (int i = 0; i < 4; ++i) {
      const uint32_t at = 4 * quad + static_cast<uint32_t>(i);
      m[at].bits = round_stochastically(exp_avg[at], draw.exp_avg(i));
      v[at].bits = round_stochastically(exp_avg_sq[at], draw.exp_avg_sq(i));
    }
  }
}

// Updates both moments of a block, which are stored as T, and writes its direction.
template <class T>
void update_moments(const Moments& a, int64_t first, int tensor, float decay, float* __restrict direction) {
  const float* __restrict w = a.master.as<float>() + first;
  const float* __restrict grad = a.grad.as<float>() + first;
  T* __restrict m = a.exp_avg.as<T>() + first;
  T* __restrict v = a.exp_avg_sq.as<T>() + first;
  const float grad_scale = a.grad_scale.as<float>()[0];
  const float beta1 = a.beta1, beta2 = a.beta2, eps = a.eps;
  const float correct1 = 1.0f / a.bias_correction1, correct2 = 1.0f / a.bias_correction2;
  float new_m[kBlock], new_v[kBlock];
  for (int i = 0; i < kBlock; ++i) {
    const float g = grad[i] * grad_scale;
    new_m[i] = beta1 * to_float(m[i]) + (1.0f - beta1) * g;
    new_v[i] = beta2 * to_float(v[i]) + (1.0f - beta2) * g * g;
    direction[i] = new_m[i] * correct1 / (std::sqrt(new_v[i] * correct2) + eps) + decay * w[i];
  }
  if constexpr (std::is_same_v<T, float>) {
    std::copy_n(new_m, kBlock, m);
    std::copy_n(new_v, kBlock, v);
  } else {
    store_rounded(a, first, tensor, new_m, new_v);
  }
}

// Calls f(first element, tensor, direction) for each block of the slice after updating its moments. Does nothing if the
// gradients are not finite.
template <class F>
void for_each_direction(const Moments& a, F f) {
  if (std::isnan(a.grad_scale.as<float>()[0])) return;
  const float* decay = a.decay.as<float>();
  dispatch(a.exp_avg.dtype, [&](auto type) {
    for_each_block(a.block_tensor, a.decay.numel(), [&](int64_t first, int tensor) {
      float direction[kBlock];
      update_moments<decltype(type)>(a, first, tensor, std::max(decay[tensor], 0.0f), direction);
      f(first, tensor, direction);
    });
  });
}

// Computes w -= step · direction for a block of `tensor` and writes its copy in compute precision or its FP8 values.
void step_weights(const Tensor& master, const Tensor& param, const Fp8SliceWeights& quantized, int64_t first,
                  int tensor, float step, const float* __restrict direction) {
  float* __restrict w = master.as<float>() + first;
  for (int i = 0; i < kBlock; ++i) w[i] -= step * direction[i];
  if (!quantized.out.empty()) cast_block(quantized, w, first, tensor);
  if (param.empty()) return;
  bf16* __restrict p = param.as<bf16>() + first;
  for (int i = 0; i < kBlock; ++i) p[i] = bf16(w[i]);
}

// Returns the sum of squares of one block, in independent lanes whose adds can run in parallel.
double block_sumsq(const float* __restrict inp) {
  constexpr int kLanes = 8;
  static_assert(kBlock % kLanes == 0);
  double lanes[kLanes] = {};
  for (int i = 0; i < kBlock; i += kLanes) {
    for (int lane = 0; lane < kLanes; ++lane) lanes[lane] += static_cast<double>(inp[i + lane]) * inp[i + lane];
  }
  double sum = 0;
  for (const double lane : lanes) sum += lane;
  return sum;
}

}  // namespace

void adamw_update(const AdamwUpdate& a) {
  if (!a.quantized.out.empty() && std::isnan(*a.moments.grad_scale.as<float>()))
    return fp8_cast_slice({.quantized = a.quantized, .inp = a.moments.master, .block_tensor = a.moments.block_tensor});
  for_each_direction(a.moments, [&](int64_t first, int tensor, const float* direction) {
    step_weights(a.moments.master, a.param, a.quantized, first, tensor, a.lr, direction);
  });
}

void lamb_direction(const LambDirection& a) {
  float* grad = a.moments.grad.as<float>();
  for_each_direction(a.moments,
                     [&](int64_t first, int, const float* direction) { std::copy_n(direction, kBlock, grad + first); });
}

void lamb_apply(const LambApply& a) {
  if (std::isnan(a.grad_scale.as<float>()[0])) {
    if (!a.quantized.out.empty())
      fp8_cast_slice({.quantized = a.quantized, .inp = a.master, .block_tensor = a.block_tensor});
    return;
  }
  const float* decay = a.decay.as<float>();
  const float* weight_sumsq = a.weight_sumsq.as<float>();
  const float* direction_sumsq = a.direction_sumsq.as<float>();
  for_each_block(a.block_tensor, a.decay.numel(), [&](int64_t first, int tensor) {
    const bool adapts = decay[tensor] >= 0 && weight_sumsq[tensor] > 0 && direction_sumsq[tensor] > 0;
    const float trust = adapts ? std::sqrt(weight_sumsq[tensor]) / std::sqrt(direction_sumsq[tensor]) : 1.0f;
    step_weights(a.master, a.param, a.quantized, first, tensor, a.lr * trust, a.direction.as<float>() + first);
  });
}

void average_weights(const AverageWeights& a) {
  if (std::isnan(a.grad_scale.as<float>()[0])) return;
  float* __restrict ema = a.ema.as<float>();
  const float* __restrict w = a.master.as<float>();
  const float step = 1.0f - a.decay;
  for (int64_t i = 0; i < a.master.numel(); ++i) ema[i] += step * (w[i] - ema[i]);
}

void tensor_sumsq(const TensorSumsq& a) {
  const float* inp = a.inp.as<float>();
  float* sumsq = a.sumsq.as<float>();
  // A tensor's blocks are adjacent: sums them in double and rounds to fp32 once.
  int owner = -1;
  double sum = 0;
  for_each_block(a.block_tensor, a.sumsq.numel(), [&](int64_t first, int tensor) {
    if (tensor != owner) {
      if (owner >= 0) sumsq[owner] += static_cast<float>(sum);
      owner = tensor;
      sum = 0;
    }
    sum += block_sumsq(inp + first);
  });
  if (owner >= 0) sumsq[owner] += static_cast<float>(sum);
}

void weighted_sum(const WeightedSum& a) {
  const float* inp = a.inp.as<float>();
  const float* weight = a.weight.as<float>();
  double sum = 0;
  for (int64_t i = 0; i < a.inp.numel(); ++i) sum += static_cast<double>(weight[i]) * inp[i];
  a.out.as<float>()[0] += static_cast<float>(sum);
}

void clip_scale(const ClipScale& a) {
  const float norm = std::sqrt(a.norm_sq.as<float>()[0]);
  a.norm.as<float>()[0] = norm;
  float scale = a.max_norm == 0 || norm <= a.max_norm ? 1.0f : a.max_norm / norm;
  const bool spike = norm > a.norm_limit || (!a.loss.empty() && a.loss.as<float>()[0] > a.loss_limit);
  if (!std::isfinite(norm) || spike) scale = std::numeric_limits<float>::quiet_NaN();
  a.scale.as<float>()[0] = scale;
}

}  // namespace tri::cpu
