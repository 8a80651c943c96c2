// From a tensor's dtype to the element type of a kernel template.
#pragma once

#include <cuda_bf16.h>

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

// The tensor's elements as the kernel's type; null when absent.
template <class T>
T* pointer(const Tensor& tensor) {
  return static_cast<T*>(tensor.data);
}

// Multiprocessors of the current device, asked once.
int num_multiprocessors();

}  // namespace tri::cuda
