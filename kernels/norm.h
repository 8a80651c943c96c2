// Residual addition and normalisation over the last dimension, fused.
//   sum = inp + add + add_bias                             (absent operands count as zero)
//   LayerNorm  out = (sum - mean) · rstd · weight + bias,  rstd = 1 / sqrt(var(sum) + eps)
//   RMSNorm    out = sum · rstd · weight,                  rstd = 1 / sqrt(mean(sum²) + eps)
// `offset` is added to the weight: with 1, weights that are saved as the difference from 1 (Gemma).
// An operand that is a sum over a tp group may be passed as its P parts, (P, R, C). They are added in fp32 in order and
// rounded to T, like the result of a reduce-scatter.
#pragma once

#include "kernels/core/kinds.h"
#include "kernels/core/tensor.h"

namespace tri {

struct NormForward {
  Norm kind = Norm::kLayerNorm;
  float eps = 1e-5f;
  float offset = 0.0f;
  Tensor out;       // (R, C) T
  Tensor mean;      // (R) f32; LayerNorm only
  Tensor rstd;      // (R) f32
  Tensor sum;       // (R, C) T; required when `add` is present, else absent: the sum is `inp`
  Tensor inp;       // (R, C) T
  Tensor add;       // (R, C) or (P, R, C) T, optional
  Tensor add_bias;  // (C) T, optional; needs `add`
  Tensor weight;    // (C) T
  Tensor bias;      // (C) T; LayerNorm with bias only
};
void check(const NormForward&);
void check_all_but_out(const NormForward&);

// Overwrites dinp with the norm's input gradient plus `dresidual`, the gradient that reaches the sum on the skip path.
// Adds to dweight and dbias in a fixed order.
struct NormBackward {
  Norm kind = Norm::kLayerNorm;
  float offset = 0.0f;
  Tensor dinp;       // (R, C) T
  Tensor dresidual;  // (R, C) T, optional; may be dinp
  Tensor dweight;    // (C) f32
  Tensor dbias;      // (C) f32; present if the forward pass had a bias
  Tensor dout;       // (R, C) or (P, R, C) T
  Tensor inp;        // (R, C) T, the forward pass's sum
  Tensor weight;     // (C) T
  Tensor mean;       // (R) f32; LayerNorm only
  Tensor rstd;       // (R) f32
};
void check(const NormBackward&);

// out = inp + add + add_bias: the end of a stage, where no norm follows. out may be inp, or an add without parts.
struct ResidualAdd {
  Tensor out;       // (R, C) T
  Tensor inp;       // (R, C) T
  Tensor add;       // (R, C) or (P, R, C) T
  Tensor add_bias;  // (C) T, optional
};
void check(const ResidualAdd&);

// Returns P of an operand (R, C) or (P, R, C).
inline int64_t num_parts(const Tensor& operand) { return operand.dims == 3 ? operand[0] : 1; }

}  // namespace tri
