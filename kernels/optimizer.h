// Optimizer updates over a slice of a flat buffer. A slice has n elements, a multiple of kBlock. block_tensor names the
// tensor that owns each block of kBlock elements. Tensors start at multiples of kBlock, so a block has one owner; -1
// marks padding, which is neither read nor written. A tensor's blocks in a slice are consecutive. Per-tensor numbers
// are (S) arrays indexed by the tensor.
//   g = grad · grad_scale[0];  m = b1·m + (1-b1)·g;  v = b2·v + (1-b2)·g²
//   direction = (m / bias_correction1) / (sqrt(v / bias_correction2) + eps) + max(decay[tensor], 0) · w
//   AdamW (Loshchilov & Hutter 2019)  w -= lr · direction
//   LAMB  (You et al. 2020, alg. 2)   w -= lr · trust · direction,
//         trust = |w| / |direction| over the whole tensor when both are positive, else 1
// decay[tensor] < 0 marks tensors (norms, biases) without weight decay and without a trust ratio.
#pragma once

#include <limits>

#include "kernels/core/tensor.h"
#include "kernels/fp8.h"

namespace tri {

// The random numbers for moments in bf16, which are rounded stochastically (kernels/moment_rounding.h). A slice of a
// tensor uses the same ones as the whole tensor.
struct MomentRounding {
  Tensor draws;             // (S, 8) i32: a TensorDraws per tensor
  int64_t first_block = 0;  // of the slice, in the numbering of the tensors' first blocks
  uint64_t step_key = 0;    // changes every step
};

// The update of the moments, common to all optimizers. All are (n) f32 unless noted. The direction uses the unrounded
// moments.
struct Moments {
  Tensor master;      // w
  Tensor exp_avg;     // m: f32|bf16
  Tensor exp_avg_sq;  // v: as m
  Tensor grad;
  Tensor grad_scale;    // (1) f32: the clipping factor; NaN: nothing is changed
  Tensor block_tensor;  // (n / kBlock) i32
  Tensor decay;         // (S) f32: weight decay of each tensor; below 0: excluded
  float beta1 = 0.9f, beta2 = 0.95f, eps = 1e-8f;
  float bias_correction1 = 1.0f, bias_correction2 = 1.0f;  // 1 - beta^step
  MomentRounding rounding = {};                            // for moments in bf16
};

// Writes the updated weights in the form that the layers read: in compute precision, or as FP8 weights, or in neither
// form if master is the parameter itself. Quantized values, amax and counts are those of the resulting weights, also
// when nothing changes.
struct AdamwUpdate {
  Moments moments;
  Tensor param;               // (n) bf16, optional
  Fp8SliceWeights quantized;  // optional
  float lr = 0.0f;
  // Uses only the multiprocessors that a stream leaves (Stream::leave_room). Not with `quantized`.
  bool alongside = false;
};
void check(const AdamwUpdate&);

// First pass of LAMB: updates the moments and overwrites grad with the direction.
struct LambDirection {
  Moments moments;
};
void check(const LambDirection&);

// Second pass of LAMB, after the caller has summed weight_sumsq and direction_sumsq over all holders of a tensor's
// parts.
struct LambApply {
  Tensor master;              // (n) f32
  Tensor param;               // (n) bf16, optional
  Fp8SliceWeights quantized;  // optional
  Tensor direction;           // (n) f32
  Tensor weight_sumsq;        // (S) f32
  Tensor direction_sumsq;     // (S) f32
  Tensor grad_scale;          // (1) f32: the same as in the first pass
  Tensor block_tensor;        // (n / kBlock) i32
  Tensor decay;               // (S) f32
  float lr = 0.0f;
};
void check(const LambApply&);

// ema += (1 - decay) · (master - ema): the exponential moving average of the weights, after their update. Padding is
// averaged too.
struct AverageWeights {
  Tensor ema;         // (n) f32
  Tensor master;      // (n) f32
  Tensor grad_scale;  // (1) f32: as in the update; NaN: nothing is changed
  float decay = 0.0f;
};
void check(const AverageWeights&);

// sumsq[tensor] += sum of squares of the tensor's elements in this slice, in a fixed order. NaN and infinities
// propagate: a sum that is not finite has an element that is not (or overflows fp32 when squared).
struct TensorSumsq {
  Tensor sumsq;         // (S) f32
  Tensor inp;           // (n) f32
  Tensor block_tensor;  // (n / kBlock) i32
};
void check(const TensorSumsq&);

// out[0] += sum_i weight[i] · inp[i]
struct WeightedSum {
  Tensor out;     // (1) f32
  Tensor inp;     // (S) f32
  Tensor weight;  // (S) f32
};
void check(const WeightedSum&);

// norm = sqrt(norm_sq);  scale = min(1, max_norm / norm), or 1 when max_norm is 0; NaN when the norm is not finite, or
// when the norm or the loss is above its limit: then the update changes nothing.
struct ClipScale {
  Tensor scale;    // (1) f32
  Tensor norm;     // (1) f32
  Tensor norm_sq;  // (1) f32
  Tensor loss;     // (1) f32, optional: without it there is no limit of the loss
  float max_norm = 0.0f;
  float norm_limit = std::numeric_limits<float>::infinity();
  float loss_limit = std::numeric_limits<float>::infinity();
};
void check(const ClipScale&);

}  // namespace tri
