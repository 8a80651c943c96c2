// Maps a tensor's dtype to the element type of a kernel template.
#pragma once

#include <cuda_bf16.h>

#include <cstdint>
#include <initializer_list>
#include <type_traits>

#include "io/base/error.h"
#include "kernels/core/tensor.h"

namespace tri::cuda {

// Calls f(T{}) with T = float or __nv_bfloat16.
template <class F>
void dispatch(Dtype dtype, F&& f) {
  if (dtype == Dtype::kF32) return f(float{});
  TRI_REQUIRE(dtype == Dtype::kBF16, "no CUDA kernel for {}", enum_name(dtype));
  f(__nv_bfloat16{});
}

// Calls f(std::true_type{}) or f(std::false_type{}): kernels have a flag as a template parameter where a branch would
// cost time.
template <class F>
void with_flag(bool flag, F&& f) {
  flag ? f(std::true_type{}) : f(std::false_type{});
}
template <class F>
void with_flags(bool first, bool second, F&& f) {
  with_flag(first, [&](auto a) { with_flag(second, [&](auto b) { f(a, b); }); });
}

// Returns the tensor's elements as the kernel's type; null if it is absent.
template <class T>
T* pointer(const Tensor& tensor) {
  return static_cast<T*>(tensor.data);
}

// Returns whether rows of `width` elements of T can be read sixteen bytes at a time in every tensor that is present.
template <class T>
bool aligned(int64_t width, std::initializer_list<Tensor> tensors) {
  auto bits = static_cast<uintptr_t>(width * static_cast<int64_t>(sizeof(T)));
  for (const Tensor& tensor : tensors) bits |= reinterpret_cast<uintptr_t>(tensor.data);
  return bits % 16 == 0;
}

}  // namespace tri::cuda
