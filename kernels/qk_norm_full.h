// RMSNorm of all query heads of a row together, and of all its key heads, then rotary position embedding, over QKV rows
// (qkv_row.h). This is the QK-norm of OLMo-2: the weights have an element for each element of the heads.
//   n = x · rstd · weight,  rstd = 1 / sqrt(Σ x² / width + eps)      over the NH · HS, or NKV · HS, elements of a row
//   out = rotate(n)                                                  as in rope.h; values are copied
// tp ranks hold shares of the heads. So each pass has two ops: one computes sums over a rank's heads, which the caller
// adds over tp, and the other uses them. In (R, 2) tensors the first column is of queries and the second of keys.
#pragma once

#include "kernels/core/kinds.h"
#include "kernels/core/qkv_row.h"
#include "kernels/core/tensor.h"

namespace tri {

// sums = Σ x² over this rank's heads
struct QkNormSquares {
  Tensor sums;           // (R, 2) f32
  Tensor inp;            // (R, NKVl · (G + 2) · HS) T
  int num_kv_heads = 0;  // NKVl
  int group = 0;         // G, query heads per key/value head
  QkvOrder order = QkvOrder::kGrouped;
};
void check(const QkNormSquares&);

struct QkNormFullForward {
  float eps = 1e-5f;
  int64_t query_width = 0;  // NH · HS, of all tp ranks
  int64_t key_width = 0;    // NKV · HS
  Tensor out;               // (R, NKVl · (G + 2) · HS) T; does not overlap inp
  Tensor rstd;              // (R, 2) f32: written
  Tensor squares;           // (R, 2) f32: Σ x² over all tp ranks
  Tensor inp;               // (R, NKVl · (G + 2) · HS) T
  Tensor query_weight;      // (NHl · HS) T
  Tensor key_weight;        // (NKVl · HS) T
  Tensor table;             // (T, HS/2, 2) f32: cos, sin
  int num_kv_heads = 0;     // NKVl
  int group = 0;            // G
  QkvOrder out_order = QkvOrder::kGrouped;
  QkvOrder inp_order = QkvOrder::kGrouped;
};
void check(const QkNormFullForward&);

// sums = Σ g · weight · x over this rank's heads,  g = rotate⁻¹(dout)
struct QkNormProducts {
  Tensor sums;           // (R, 2) f32
  Tensor dout;           // (R, NKVl · (G + 2) · HS) T
  Tensor inp;            // (R, NKVl · (G + 2) · HS) T: the forward pass's input
  Tensor query_weight;   // (NHl · HS) T
  Tensor key_weight;     // (NKVl · HS) T
  Tensor table;          // (T, HS/2, 2) f32: cos, sin
  int num_kv_heads = 0;  // NKVl
  int group = 0;         // G
  QkvOrder dout_order = QkvOrder::kGrouped;
  QkvOrder inp_order = QkvOrder::kGrouped;
};
void check(const QkNormProducts&);

// Overwrites dinp; adds to the weights' gradients in a fixed order.
//   dweight += Σ_rows g · x · rstd,  dx = rstd · (g · weight - x · rstd² · products / width)
struct QkNormFullBackward {
  int64_t query_width = 0;  // NH · HS, of all tp ranks
  int64_t key_width = 0;    // NKV · HS
  Tensor dinp;              // (R, NKVl · (G + 2) · HS) T; may be dout if the orders are equal
  Tensor dquery_weight;     // (NHl · HS) f32
  Tensor dkey_weight;       // (NKVl · HS) f32
  Tensor rstd;              // (R, 2) f32: from the forward pass
  Tensor products;          // (R, 2) f32: Σ g · weight · x over all tp ranks
  Tensor dout;              // (R, NKVl · (G + 2) · HS) T
  Tensor inp;               // (R, NKVl · (G + 2) · HS) T: the forward pass's input, in dinp_order
  Tensor query_weight;      // (NHl · HS) T
  Tensor key_weight;        // (NKVl · HS) T
  Tensor table;             // (T, HS/2, 2) f32: cos, sin
  int num_kv_heads = 0;     // NKVl
  int group = 0;            // G
  QkvOrder dout_order = QkvOrder::kGrouped;
  QkvOrder dinp_order = QkvOrder::kGrouped;
};
void check(const QkNormFullBackward&);

}  // namespace tri
