// Rotary position embedding (Su et al. 2021) of the queries and keys of QKV rows (qkv_row.h). It works in place, or
// writes to rows of the same or the other order and copies the values.
// Halves convention (GPT-NeoX, LLaMA in Hugging Face naming): element i of the first half pairs with i + HS/2.
//   (x1, x2) <- (x1·cos - x2·sin, x2·cos + x1·sin),  angle = t · frequency[i],  t = r % T
// The backward pass applies the transposed matrix to the gradient: `inp` is the gradient of the rotated rows. It is the
// inverse rotation, multiplied by the attention factor with which the table's entries are multiplied.
#pragma once

#include <vector>

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

// The frequencies of RoPE. Without scaling, frequency[i] = f_i = theta^(-2i/HS), in radians per position. Scaling fits
// a model that was trained on original_seq_len = L tokens to `factor` = s times as many. With r_i = L · f_i / 2π, the
// rotations of f_i within L tokens:
//   linear  f_i / s                                                                       (Chen et al. 2023)
//   llama3  f_i if r_i >= high_freq_factor, f_i / s if r_i <= low_freq_factor, and between the two
//           (1 - a) · f_i / s + a · f_i,  a = (r_i - low) / (high - low)                   (Llama 3.1, 2024)
//   yarn    (1 - b_i) · f_i + b_i · f_i / s,  b_i = clamp((i - first) / (last - first), 0, 1)  (Peng et al. 2023)
//           where first and last are the pairs that rotate beta_fast and beta_slow times within L tokens:
//           c(n) = HS · ln(L / 2πn) / (2 ln theta),  first = max(floor(c(beta_fast)), 0),
//           last = min(ceil(c(beta_slow)), HS - 1). Cosines and sines are multiplied by the attention factor.
// These are the formulas of transformers (modeling_rope_utils.py).
//
// Partial RoPE rotates D = fraction · HS elements of a head: D takes the place of HS above, and the pairs from D/2 on
// have the angle 0 and no attention factor. transformers rotates the first D elements of a head, so element i of pair
// i < D/2 is its element i, and i + HS/2 is its i + D/2 (lib/huggingface reorders the rows of weights). The scores are
// the same.
struct RopeAngles {
  double theta = 10000.0;
  double fraction = 1.0;
  RopeScaling scaling = RopeScaling::kNone;
  double factor = 1.0;                                   // s
  int original_seq_len = 0;                              // L of llama3 and yarn
  double low_freq_factor = 1.0, high_freq_factor = 4.0;  // llama3
  double beta_fast = 32.0, beta_slow = 1.0;              // yarn
  double attention_factor = 0.0;                         // yarn; 0: 0.1 · ln(s) + 1
};

// Returns D, the elements of a head that rotate; like transformers, without the part after the decimal point.
constexpr int rotated_elements(double fraction, int head_size) { return static_cast<int>(fraction * head_size); }

// Returns frequency[i] of the HS/2 pairs of a head. D must be even and positive.
std::vector<double> rope_frequencies(const RopeAngles& angles, int head_size);

// Returns the factor of cosines and sines; 1 except with yarn.
double rope_attention_factor(const RopeAngles& angles);

// Fills a host table (T, HS/2, 2) for Rope::table. All devices use this table.
void fill_rope_table(float* table, int seq_len, int head_size, const RopeAngles& angles);

}  // namespace tri
