// RMSNorm of every query and key head, then rotary position embedding, in one pass over QKV rows (qkv_row.h). This is
// the QK-norm of Qwen3: one weight of HS elements for all query heads and one for all key heads.
//   n = x · rstd · (weight + offset),  rstd = 1 / sqrt(mean_i(x_i²) + eps)      over the HS elements of a head
//   out = rotate(n)                                                  as in rope.h; values are copied
// `offset` is 0, or 1 for weights that are saved as the difference from 1 (Gemma-3).
// Nothing is saved: the backward pass recomputes rstd from the forward pass's input, which it reads anyway.
#pragma once

#include "kernels/core/kinds.h"
#include "kernels/core/qkv_row.h"
#include "kernels/core/tensor.h"

namespace tri {

struct QkNormRopeForward {
  float eps = 1e-6f;
  float offset = 0.0f;
  Tensor out;            // (R, NKVl · (G + 2) · HS) T; does not overlap inp
  Tensor inp;            // (R, NKVl · (G + 2) · HS) T
  Tensor query_weight;   // (HS) T
  Tensor key_weight;     // (HS) T
  Tensor table;          // (T, HS/2, 2) f32: cos, sin
  int num_kv_heads = 0;  // NKVl
  int group = 0;         // G, query heads per key/value head
  QkvOrder out_order = QkvOrder::kGrouped;
  QkvOrder inp_order = QkvOrder::kGrouped;
};
void check(const QkNormRopeForward&);

// Overwrites dinp; adds to the weights' gradients in a fixed order.
//   g = rotate⁻¹(dout),  x^ = x · rstd,  dweight += Σ_heads,rows g · x^
//   dx = rstd · (g · w - x^ · mean_i(g · w · x^)),  w = weight + offset
struct QkNormRopeBackward {
  float eps = 1e-6f;
  float offset = 0.0f;
  Tensor dinp;           // (R, NKVl · (G + 2) · HS) T; may be dout if the orders are equal
  Tensor dquery_weight;  // (HS) f32
  Tensor dkey_weight;    // (HS) f32
  Tensor dout;           // (R, NKVl · (G + 2) · HS) T
  Tensor inp;            // (R, NKVl · (G + 2) · HS) T: the forward pass's input, in dinp_order
  Tensor query_weight;   // (HS) T
  Tensor key_weight;     // (HS) T
  Tensor table;          // (T, HS/2, 2) f32: cos, sin
  int num_kv_heads = 0;  // NKVl
  int group = 0;         // G
  QkvOrder dout_order = QkvOrder::kGrouped;
  QkvOrder dinp_order = QkvOrder::kGrouped;
};
void check(const QkNormRopeBackward&);

}  // namespace tri
