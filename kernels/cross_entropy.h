// Cross-entropy over a vocabulary split over tp, in two passes over this rank's logits and one exchange of (R, 3)
// floats.
//   1. CrossEntropyStats: over the own columns, the largest logit, the sum of exp(logit - max), the target's logit.
//   2. The caller all-gathers the stats over tp.
//   3. CrossEntropyLoss: loss += sum_r lse[r] - target[r];  logits <- (softmax - onehot) · grad_scale, in place.
//      With z-loss (Chowdhery et al. 2022) the gradient is that of the loss plus z_loss · sum_r lse[r]², which adds
//      2 · z_loss · lse · softmax · grad_scale. The loss itself stays the cross-entropy.
// With a softcap c > 0 (Gemma-2), c · tanh(x / c) replaces each logit x before all of this, and the gradient, which is
// that of x, is multiplied by 1 - tanh²(x / c). The logits in memory are those before the softcap.
// A rank that holds the full vocabulary skips 1 and 2: without `stats` the loss computes them from its logits.
// Columns at or beyond `vocab` are padding: they are ignored and their gradient is zero.
#pragma once

#include "kernels/core/tensor.h"

namespace tri {

struct CrossEntropyStats {
  Tensor stats;          // max, sum of exp(logit - max), logit of the target (-inf if another rank holds it)
  Tensor logits;         // (R, Vl) T
  Tensor targets;        // (R) i32, 0 <= target < vocab, or kNoTarget (no_target.h)
  int first_token = 0;   // global column of logits[:, 0]
  int vocab = 0;         // columns without padding, over all tp ranks
  float softcap = 0.0f;  // c; 0 = none
};
void check(const CrossEntropyStats&);

enum class LogitGradient { kNone, kInPlace };

struct CrossEntropyLoss {
  Tensor loss;     // (1) f32, += sum over rows
  Tensor logits;   // (R, Vl) T; becomes the gradient when `gradient` is kInPlace
  Tensor stats;    // (tp, R, 3) f32; absent: first_token is 0 and the logits cover the full vocabulary
  Tensor targets;  // (R) i32, as above
  int first_token = 0;
  int vocab = 0;
  LogitGradient gradient = LogitGradient::kInPlace;
  float grad_scale = 1.0f;
  float z_loss = 0.0f;
  float softcap = 0.0f;
};
void check(const CrossEntropyLoss&);

}  // namespace tri
