// Causal attention of new tokens against a cache of keys and values, for passes without a backward pass. A row is one
// token of any sequence, at any position; rows of one pass may belong to different sequences.
//   1. The key and the value of row r go to slot position[r] % P of sequence[r].
//   2. out[r] = sum_{s in band(p)} softmax_s(scale · q_r·k_s) · v_s,  p = position[r],
//      band(p) = (p - W, p] with W = window; [0, p] when the window is 0
//      With a softcap c > 0, c · tanh(x / c) replaces each score x = scale · q_r·k_s.
// All rows are stored before any is read, so the rows of a pass may follow each other. The caller has stored the
// positions of the band in earlier passes or stores them in this one. P slots are enough if P >= T, or if
// P >= W + n - 1 for at most n rows of one sequence in a pass.
#pragma once

#include "kernels/core/kinds.h"
#include "kernels/core/qkv_row.h"
#include "kernels/core/tensor.h"

namespace tri {

struct CachedAttention {
  Tensor out;        // (R, NHl · HS) T, heads in order
  Tensor keys;       // (S, P, NKVl · HS) T
  Tensor values;     // (S, P, NKVl · HS) T
  Tensor qkv;        // (R, NKVl · (G + 2) · HS) T
  Tensor sequences;  // (R) i32, 0 <= sequence < S; -1: padding, which stores nothing and whose output is zero
  Tensor positions;  // (R) i32, from 0
  QkvOrder order = QkvOrder::kGrouped;
  int num_kv_heads = 0;  // NKVl
  int group = 0;         // G
  int window = 0;        // W; 0 = full causal
  float scale = 0.0f;    // usually 1 / sqrt(HS)
  float softcap = 0.0f;  // c; 0 = none
};
void check(const CachedAttention&);

inline constexpr int64_t kCachedAttentionMaxHeadSize = 1024;

}  // namespace tri
