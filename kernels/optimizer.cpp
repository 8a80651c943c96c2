#include "kernels/optimizer.h"

#include <cmath>

#include "kernels/core/checks.h"
#include "kernels/core/dims.h"
#include "kernels/moment_rounding.h"

namespace tri {
namespace {

// Returns the slice's length n: `tensor` is (n) f32, block_tensor (n / kBlock) i32.
int64_t check_slice(const char* op, const char* operand, const Tensor& tensor, const Tensor& block_tensor) {
  const int64_t n = tensor.numel();
  require_tensor(op, operand, tensor, Dtype::kF32, {n});
  TRI_REQUIRE(n % kBlock == 0, "{}: {} {} is not whole blocks of {}", op, operand, tensor.shape_text(), kBlock);
  require_tensor(op, "block_tensor", block_tensor, Dtype::kI32, {n / kBlock});
  return n;
}

void check_param(const char* op, const Tensor& param, const Fp8SliceWeights& quantized, int64_t n) {
  TRI_REQUIRE(param.empty() || quantized.out.empty(), "{}: both param and quantized weights are outputs", op);
  if (!param.empty()) require_tensor(op, "param", param, Dtype::kBF16, {n});
  if (!quantized.out.empty()) check(op, quantized, n);
}

int64_t check_moments(const char* op, const Moments& a) {
  const int64_t n = check_slice(op, "master", a.master, a.block_tensor);
  const Dtype kept = a.exp_avg.dtype;
  TRI_REQUIRE(kept == Dtype::kF32 || kept == Dtype::kBF16, "{}: moments in {}", op, enum_name(kept));
  require_tensor(op, "exp_avg", a.exp_avg, kept, {n});
  require_tensor(op, "exp_avg_sq", a.exp_avg_sq, kept, {n});
  require_tensor(op, "grad", a.grad, Dtype::kF32, {n});
  require_tensor(op, "grad_scale", a.grad_scale, Dtype::kF32, {1});
  require_tensor(op, "decay", a.decay, Dtype::kF32, {a.decay.numel()});
  TRI_REQUIRE(a.beta1 >= 0 && a.beta1 < 1 && a.beta2 >= 0 && a.beta2 < 1 && a.eps >= 0, "{}: betas {} and {}, eps {}",
              op, a.beta1, a.beta2, a.eps);
  TRI_REQUIRE(a.bias_correction1 > 0 && a.bias_correction2 > 0, "{}: bias corrections {} and {}", op,
              a.bias_correction1, a.bias_correction2);
  if (kept == Dtype::kF32) return n;
  require_tensor(op, "draws", a.rounding.draws, Dtype::kI32, {a.decay.numel(), TensorDraws::kColumns});
  TRI_REQUIRE(a.rounding.first_block >= 0, "{}: first block {}", op, a.rounding.first_block);
  return n;
}

}  // namespace

void check(const AdamwUpdate& a) {
  const int64_t n = check_moments("adamw_update", a.moments);
  check_param("adamw_update", a.param, a.quantized, n);
  TRI_REQUIRE(!a.alongside || a.quantized.out.empty(), "adamw_update alongside other kernels writes no FP8 weights");
}

void check(const LambDirection& a) { check_moments("lamb_direction", a.moments); }

void check(const LambApply& a) {
  const int64_t n = check_slice("lamb_apply", "master", a.master, a.block_tensor);
  require_tensor("lamb_apply", "direction", a.direction, Dtype::kF32, {n});
  check_param("lamb_apply", a.param, a.quantized, n);
  require_tensor("lamb_apply", "grad_scale", a.grad_scale, Dtype::kF32, {1});
  const int64_t num_tensors = a.decay.numel();
  require_tensor("lamb_apply", "decay", a.decay, Dtype::kF32, {num_tensors});
  require_tensor("lamb_apply", "weight_sumsq", a.weight_sumsq, Dtype::kF32, {num_tensors});
  require_tensor("lamb_apply", "direction_sumsq", a.direction_sumsq, Dtype::kF32, {num_tensors});
}

void check(const AverageWeights& a) {
  const int64_t n = a.master.numel();
  require_tensor("average_weights", "master", a.master, Dtype::kF32, {n});
  require_tensor("average_weights", "ema", a.ema, Dtype::kF32, {n});
  require_tensor("average_weights", "grad_scale", a.grad_scale, Dtype::kF32, {1});
  TRI_REQUIRE(n % kBlock == 0, "average_weights: {} elements are not whole blocks of {}", n, kBlock);
  TRI_REQUIRE(a.decay >= 0 && a.decay < 1, "average_weights: decay {}", a.decay);
}

void check(const TensorSumsq& a) {
  check_slice("tensor_sumsq", "inp", a.inp, a.block_tensor);
  require_tensor("tensor_sumsq", "sumsq", a.sumsq, Dtype::kF32, {a.sumsq.numel()});
}

void check(const WeightedSum& a) {
  require_tensor("weighted_sum", "out", a.out, Dtype::kF32, {1});
  require_tensor("weighted_sum", "inp", a.inp, Dtype::kF32, {a.inp.numel()});
  require_tensor("weighted_sum", "weight", a.weight, Dtype::kF32, {a.inp.numel()});
}

void check(const ClipScale& a) {
  require_tensor("clip_scale", "scale", a.scale, Dtype::kF32, {1});
  require_tensor("clip_scale", "norm", a.norm, Dtype::kF32, {1});
  require_tensor("clip_scale", "norm_sq", a.norm_sq, Dtype::kF32, {1});
  require_optional("clip_scale", "loss", a.loss, Dtype::kF32, {1});
  TRI_REQUIRE(a.max_norm >= 0 && std::isfinite(a.max_norm), "clip_scale: max_norm {}", a.max_norm);
}

}  // namespace tri
