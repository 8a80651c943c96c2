// Optimizer updates, the reference.  Formulas and shapes: kernels/optimizer.h.
// Updates are elementwise over blocks with one owner each, so any cut into slices gives the same bits.
// Sums are taken in double, in a fixed order.  Bound: memory.
#include "kernels/optimizer.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/core/dims.h"
#include "kernels/cpu/ops.h"

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

// Updates both moments of a block and writes its direction.
void update_moments(const Moments& a, int64_t first, float decay, float* __restrict direction) {
  const float* __restrict w = a.master.as<float>() + first;
  const float* __restrict grad = a.grad.as<float>() + first;
  float* __restrict m = a.exp_avg.as<float>() + first;
  float* __restrict v = a.exp_avg_sq.as<float>() + first;
  const float grad_scale = a.grad_scale.as<float>()[0];
  const float beta1 = a.beta1, beta2 = a.beta2, eps = a.eps;
  const float correct1 = 1.0f / a.bias_correction1, correct2 = 1.0f / a.bias_correction2;
  for (int i = 0; i < kBlock; ++i) {
    const float g = grad[i] * grad_scale;
    m[i] = beta1 * m[i] + (1.0f - beta1) * g;
    v[i] = beta2 * v[i] + (1.0f - beta2) * g * g;
    direction[i] = m[i] * correct1 / (std::sqrt(v[i] * correct2) + eps) + decay * w[i];
  }
}

// w -= step · direction, and its copy in compute precision.
void step_weights(const Tensor& master, const Tensor& param, int64_t first, float step,
                  const float* __restrict direction) {
  float* __restrict w = master.as<float>() + first;
  for (int i = 0; i < kBlock; ++i) w[i] -= step * direction[i];
  if (param.empty()) return;
  bf16* __restrict p = param.as<bf16>() + first;
  for (int i = 0; i < kBlock; ++i) p[i] = bf16(w[i]);
}

// Sum of squares of one block: independent lanes, so that the adds can run side by side.
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
  if (std::isnan(a.moments.grad_scale.as<float>()[0])) return;
  const float* decay = a.moments.decay.as<float>();
  for_each_block(a.moments.block_tensor, a.moments.decay.numel(), [&](int64_t first, int tensor) {
    float direction[kBlock];
    update_moments(a.moments, first, std::max(decay[tensor], 0.0f), direction);
    step_weights(a.moments.master, a.param, first, a.lr, direction);
  });
}

void lamb_direction(const LambDirection& a) {
  if (std::isnan(a.moments.grad_scale.as<float>()[0])) return;
  const float* decay = a.moments.decay.as<float>();
  for_each_block(a.moments.block_tensor, a.moments.decay.numel(), [&](int64_t first, int tensor) {
    float direction[kBlock];
    update_moments(a.moments, first, std::max(decay[tensor], 0.0f), direction);
    std::copy_n(direction, kBlock, a.moments.grad.as<float>() + first);
  });
}

void lamb_apply(const LambApply& a) {
  if (std::isnan(a.grad_scale.as<float>()[0])) return;
  const float* decay = a.decay.as<float>();
  const float* weight_sumsq = a.weight_sumsq.as<float>();
  const float* direction_sumsq = a.direction_sumsq.as<float>();
  for_each_block(a.block_tensor, a.decay.numel(), [&](int64_t first, int tensor) {
    const bool adapts = decay[tensor] >= 0 && weight_sumsq[tensor] > 0 && direction_sumsq[tensor] > 0;
    const float trust = adapts ? std::sqrt(weight_sumsq[tensor]) / std::sqrt(direction_sumsq[tensor]) : 1.0f;
    step_weights(a.master, a.param, first, a.lr * trust, a.direction.as<float>() + first);
  });
}

void tensor_sumsq(const TensorSumsq& a) {
  const float* inp = a.inp.as<float>();
  float* sumsq = a.sumsq.as<float>();
  // A tensor's blocks are neighbours: sum the run in double, round to fp32 once.
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
  if (!std::isfinite(norm)) scale = std::numeric_limits<float>::quiet_NaN();
  a.scale.as<float>()[0] = scale;
}

}  // namespace tri::cpu
