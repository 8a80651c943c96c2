// Requirements on operands, for check(Args) of an operation. A violation is an internal error (TRI_REQUIRE); its
// message names the operation, the operand and both shapes.
#pragma once

#include <initializer_list>

#include "kernels/core/tensor.h"

namespace tri {

// Requires `tensor` to be present, of this dtype and exactly this shape.
inline void require_tensor(const char* op, const char* operand, const Tensor& tensor, Dtype dtype,
                           std::initializer_list<int64_t> shape) {
  const Tensor wanted(tensor.data, dtype, shape);
  TRI_REQUIRE(tensor.dtype == wanted.dtype && tensor.dims == wanted.dims && tensor.shape == wanted.shape,
              "{}: {} is {}, not {}", op, operand, tensor.shape_text(), wanted.shape_text());
  TRI_REQUIRE(!tensor.empty() || tensor.numel() == 0, "{}: {} {} is absent", op, operand, tensor.shape_text());
}

// The same for an operand that may be absent.
inline void require_optional(const char* op, const char* operand, const Tensor& tensor, Dtype dtype,
                             std::initializer_list<int64_t> shape) {
  if (!tensor.empty()) require_tensor(op, operand, tensor, dtype, shape);
}

// Requires `tensor` to be present and to hold floating-point numbers.
inline void require_float(const char* op, const char* operand, const Tensor& tensor) {
  TRI_REQUIRE(!tensor.empty() && (tensor.dtype == Dtype::kF32 || tensor.dtype == Dtype::kBF16),
              "{}: {} {} is absent, or neither fp32 nor bf16", op, operand, tensor.shape_text());
}

// Requires `tensor` to be present, of shape (R, C) and a floating-point type.
inline void require_matrix(const char* op, const char* operand, const Tensor& tensor) {
  require_float(op, operand, tensor);
  TRI_REQUIRE(tensor.dims == 2, "{}: {} {} is not a matrix", op, operand, tensor.shape_text());
}

}  // namespace tri
