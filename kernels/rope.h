// Rotary position embedding (Su et al. 2021) of the queries and keys of QKV rows (qkv_row.h). It works in place, or
// writes to rows of the same or the other order and copies the values.
// Halves convention (GPT-NeoX, LLaMA in Hugging Face naming): element i of the first half pairs with i + HS/2.
//   (x1, x2) <- (x1·cos - x2·sin, x2·cos + x1·sin),  angle = t · theta^(-2i/HS),  t = r % T
// The backward pass applies the inverse rotation to the gradient: `inp` is the gradient of the rotated rows.
#pragma once

#include "kernels/core/kinds.h"
#include "kernels/core/qkv_row.h"
#include "kernels/core/tensor.h"

namespace tri {

struct Rope {
  Pass pass = Pass::kForward;
  Tensor out;            // (R, NKVl · (G + 2) · HS) T
  Tensor inp;            // (R, NKVl · (G + 2) · HS) T; identical to out or disjoint from it
  Tensor table;          // (T, HS/2, 2) f32: cos, sin
  int num_kv_heads = 0;  // NKVl
  int group = 0;         // G, query heads per key/value head
  QkvOrder out_order = QkvOrder::kGrouped;
  QkvOrder inp_order = QkvOrder::kGrouped;  // in place: equal to out_order
};
void check(const Rope&);

// Fills a host table (T, HS/2, 2) for Rope::table.
void fill_rope_table(float* table, int seq_len, int head_size, double theta);

}  // namespace tri
