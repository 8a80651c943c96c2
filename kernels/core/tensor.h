// Tensor: a non-owning, contiguous, row-major view of device memory. Arenas own the memory.
#pragma once

#include <array>
#include <initializer_list>
#include <string>

#include "io/base/error.h"
#include "kernels/core/dtype.h"

namespace tri {

struct Tensor {
  static constexpr int kMaxDims = 4;

  void* data = nullptr;
  Dtype dtype = Dtype::kF32;
  int dims = 0;
  std::array<int64_t, kMaxDims> shape{};

  Tensor() = default;
  Tensor(void* data, Dtype dtype, std::initializer_list<int64_t> shape_list) : data(data), dtype(dtype) {
    TRI_REQUIRE(shape_list.size() <= kMaxDims, "{} dimensions", shape_list.size());
    for (const int64_t extent : shape_list) shape[dims++] = extent;
  }

  bool empty() const { return data == nullptr; }  // true: an optional operand is absent
  int64_t numel() const {
    int64_t count = 1;
    for (int d = 0; d < dims; ++d) count *= shape[d];
    return count;
  }
  int64_t bytes() const { return numel() * static_cast<int64_t>(dtype_bytes(dtype)); }
  int64_t operator[](int dim) const { return shape[dim]; }

  // Returns the elements as T. The dtype must be T's.
  template <class T>
  T* as() const {
    TRI_REQUIRE(empty() || dtype == dtype_of<T>(), "tensor is {}, accessed as {}", enum_name(dtype),
                enum_name(dtype_of<T>()));
    return static_cast<T*>(data);
  }

  // Returns the same elements in another shape.
  Tensor view(std::initializer_list<int64_t> new_shape) const {
    Tensor result(data, dtype, new_shape);
    TRI_REQUIRE(result.numel() == numel(), "view of {} elements as {}", numel(), result.numel());
    return result;
  }
  // Returns elements [first, first + count) of the flattened tensor, 1-D.
  Tensor flat(int64_t first, int64_t count) const {
    TRI_REQUIRE(first >= 0 && count >= 0 && first + count <= numel(), "elements [{}, {}) of {}", first, first + count,
                numel());
    return {static_cast<char*>(data) + first * static_cast<int64_t>(dtype_bytes(dtype)), dtype, {count}};
  }
  Tensor flat() const { return flat(0, numel()); }
  // Returns rows [first, first + count) of the outermost dimension.
  Tensor rows(int64_t first, int64_t count) const {
    Tensor result = *this;
    const int64_t row = dims > 0 && shape[0] > 0 ? numel() / shape[0] : 0;
    TRI_REQUIRE(dims > 0 && first >= 0 && first + count <= shape[0], "rows [{}, {}) of {}", first, first + count,
                dims > 0 ? shape[0] : 0);
    result.data = static_cast<char*>(data) + first * row * static_cast<int64_t>(dtype_bytes(dtype));
    result.shape[0] = count;
    return result;
  }

  std::string shape_text() const;  // "(4, 128) bf16"
};

}  // namespace tri
