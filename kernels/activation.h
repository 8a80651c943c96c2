// The feed-forward activation.
//   GeLU (tanh form)  out = 0.5 · x · (1 + tanh(sqrt(2/pi) · (x + 0.044715 · x³)))
//   GeLU (erf form)   out = x · Φ(x),  Φ(x) = 0.5 · (1 + erf(x / sqrt(2)))
//   SwiGLU            out = silu(gate) · up,  silu(x) = x / (1 + exp(-x)),  each row of inp is gate (F), then up (F)
//   GeGLU             out = gelu(gate) · up with the tanh form, rows as in SwiGLU
// `used`, if present, is the number of rows that are computed; the others are neither read nor written.
#pragma once

#include <array>

#include "kernels/core/kinds.h"
#include "kernels/core/tensor.h"

namespace tri {

// The activations that these ops compute.
inline constexpr std::array kActivationKernels{Activation::kGelu, Activation::kGeluErf, Activation::kSwiglu,
                                               Activation::kGeglu};

struct ActivationForward {
  Activation kind = Activation::kGelu;
  Tensor out;        // (R, F) T
  Tensor inp;        // (R, F) T, or (R, 2F) T if gated
  Tensor used = {};  // (1) i32, optional
};
void check(const ActivationForward&);

struct ActivationBackward {
  Activation kind = Activation::kGelu;
  Tensor dinp;       // like inp; overwritten; may be inp and, without a gate, dout
  Tensor dout;       // (R, F) T
  Tensor inp;        // (R, F) T, or (R, 2F) T if gated
  Tensor used = {};  // (1) i32, optional
};
void check(const ActivationBackward&);

}  // namespace tri
