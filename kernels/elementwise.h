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

}  // namespace tri
