// Small elementwise operations on flat tensors.
#pragma once

#include "kernels/core/tensor.h"

namespace tri {

// out = inp, converted to out's dtype (round to nearest even).
struct Cast {
  Tensor out;  // (n) f32|bf16
  Tensor inp;  // (n) f32|bf16
};
void check(const Cast&);

// inout += inp, in fp32.
struct Accumulate {
  Tensor inout;  // (n) f32|bf16
  Tensor inp;    // (n), same dtype
};
void check(const Accumulate&);

// Sums P contiguous parts, the last step of a reduction over P members; in fp32, rounded once.
//   kOverwrite   out = parts[0] + (parts[1] + ... + parts[P-1])
//   kAdd         out = out      + (parts[0] + ... + parts[P-1])
// The sum in brackets is computed first, in the order of the parts.
enum class SumInto { kOverwrite, kAdd };
struct SumParts {
  SumInto into = SumInto::kOverwrite;
  Tensor out;    // (n) f32|bf16, or any shape of n elements
  Tensor parts;  // (P, n), P >= 1, same dtype; does not overlap out
};
void check(const SumParts&);

}  // namespace tri
