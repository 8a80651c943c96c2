// Maps a tensor's dtype to the storage type of a template: float or bf16. Arithmetic is always fp32.
#pragma once

#include "io/base/error.h"
#include "kernels/core/dtype.h"

namespace tri::cpu {

// Calls f(T{}) with T = float or bf16.
template <class F>
void dispatch(Dtype dtype, F&& f) {
  if (dtype == Dtype::kF32) return f(float{});
  TRI_REQUIRE(dtype == Dtype::kBF16, "no CPU kernel for {}", enum_name(dtype));
  f(bf16{});
}

inline float to_float(float value) { return value; }
inline float to_float(bf16 value) { return static_cast<float>(value); }

template <class T>
T from_float(float value) {
  return T(value);
}

}  // namespace tri::cpu
