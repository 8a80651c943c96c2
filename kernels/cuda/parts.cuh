// An operand in parts (P, R, C), the result of a reduction by copies. The kernel that reads it adds the parts
// (kernels/norm.h).
#pragma once

#include "kernels/cuda/device_math.cuh"
#include "kernels/cuda/dispatch.h"
#include "kernels/norm.h"

namespace tri::cuda {

// The parts of an operand (P, R, C) after its first.
template <class T>
struct MoreParts {
  const T* first;  // part 1
  int64_t stride;  // R · C
  int count;       // P - 1
};

template <class T>
MoreParts<T> more_parts(const Tensor& operand) {
  const int64_t parts = operand.empty() ? 1 : num_parts(operand);
  const int64_t stride = parts > 1 ? operand.numel() / parts : 0;
  return {parts > 1 ? pointer<T>(operand) + stride : nullptr, stride, static_cast<int>(parts) - 1};
}

// Replaces x, the pack at `at` of the first part, with that of the sum, rounded to T.
template <int kVec, class T>
__device__ __forceinline__ void add_parts(const MoreParts<T>& parts, int64_t at, float (&x)[kVec]) {
  const T* part = parts.first + at;
#pragma unroll 4
  for (int k = 0; k < parts.count; ++k, part += parts.stride) {
    float y[kVec];
    unpack(load_pack<kVec>(part), y);
#pragma unroll
    for (int i = 0; i < kVec; ++i) x[i] += y[i];
  }
  unpack(pack_floats<T>(x), x);
}

}  // namespace tri::cuda
