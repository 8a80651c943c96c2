// Causal self-attention over grouped QKV rows (dims.h), softmax statistics kept, scores never stored.
//   out[t] = sum_{s in band(t)} softmax_s(scale · q_t·k_s) · v_s,  band(t) = (t - W, t] with W = window, or [0, t] for
//   0 lse[b, h, t] = log sum_s exp(scale · q_t·k_s)
// Blocks outside the band are skipped, forward and backward.  Source: Dao 2023 (FlashAttention-2), algorithms 1 and 2.
#pragma once

#include "kernels/core/kinds.h"
#include "kernels/core/tensor.h"

namespace tri {

struct AttentionForward {
  Tensor out;            // (R, NHl · HS) T, heads in order
  Tensor lse;            // (B, NHl, T) f32
  Tensor qkv;            // (R, NKVl · (G + 2) · HS) T
  int seq_len = 0;       // T; B = R / T
  int num_kv_heads = 0;  // NKVl
  int group = 0;         // G; NHl = NKVl · G
  int window = 0;        // W; 0 = full causal
  float scale = 0.0f;    // 1 / sqrt(HS)
  AttentionKernel kernel = AttentionKernel::kAuto;
};
void check(const AttentionForward&);

struct AttentionBackward {
  Tensor dqkv;   // (R, NKVl · (G + 2) · HS) T, overwritten; may not be qkv
  Tensor delta;  // (B, NHl, T) f32, workspace: sum_c dout · out
  Tensor dout;   // (R, NHl · HS) T
  Tensor out;    // (R, NHl · HS) T
  Tensor lse;    // (B, NHl, T) f32
  Tensor qkv;    // (R, NKVl · (G + 2) · HS) T
  int seq_len = 0;
  int num_kv_heads = 0;
  int group = 0;
  int window = 0;
  float scale = 0.0f;
  AttentionKernel kernel = AttentionKernel::kAuto;  // the forward's
};
void check(const AttentionBackward&);

}  // namespace tri
