// Maps a tensor's dtype to the storage type of a template: float or bf16. Arithmetic is always fp32.
#pragma once

#include <algorithm>

#include "io/base/error.h"
#include "kernels/core/tensor.h"

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

// Returns the rows of a tensor that an operation processes: `used` (1) i32, or without it all.
inline int64_t used_rows(const Tensor& used, int64_t rows) {
  return used.empty() ? rows : std::min(rows, int64_t{*used.as<int32_t>()});
}
// Returns the first rows of a matrix.
inline Tensor first_rows(const Tensor& matrix, const Tensor& used) {
  return matrix.empty() ? matrix : matrix.rows(0, used_rows(used, matrix[0]));
}

}  // namespace tri::cpu
