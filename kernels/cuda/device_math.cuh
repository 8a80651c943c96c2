// Element access that all kernels share: 16-byte vectors of a storage type, converted to fp32 and back.
#pragma once

#include <cuda_bf16.h>

#include <cstdint>

#include "kernels/core/dtype.h"

namespace tri::cuda {

// The device's type for a storage type: float or __nv_bfloat16.
template <class T>
struct Storage;
template <>
struct Storage<float> {
  using type = float;
};
template <>
struct Storage<bf16> {
  using type = __nv_bfloat16;
};

__device__ __forceinline__ float to_float(float value) { return value; }
__device__ __forceinline__ float to_float(__nv_bfloat16 value) { return __bfloat162float(value); }

template <class T>
__device__ __forceinline__ T from_float(float value);
template <>
__device__ __forceinline__ float from_float<float>(float value) {
  return value;
}
template <>
__device__ __forceinline__ __nv_bfloat16 from_float<__nv_bfloat16>(float value) {
  return __float2bfloat16_rn(value);
}

constexpr float kLog2E = 1.4426950408889634f;

// 2^x by the special-function unit, without its care for denormals.
__device__ __forceinline__ float exp2_fast(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// kSize elements of T, loaded and stored at once: sixteen bytes where rows are aligned, one element elsewhere.
template <class T, int kElements = 16 / sizeof(T)>
struct alignas(kElements * sizeof(T)) Pack {
  static constexpr int kSize = kElements;
  T item[kElements];
};

template <int kElements, class T>
__device__ __forceinline__ Pack<T, kElements> load_pack(const T* at) {
  return *reinterpret_cast<const Pack<T, kElements>*>(at);
}
template <class T>
__device__ __forceinline__ Pack<T> load_pack(const T* at) {
  Pack<T> pack;
  *reinterpret_cast<uint4*>(&pack) = *reinterpret_cast<const uint4*>(at);
  return pack;
}
template <class T, int kElements>
__device__ __forceinline__ void store_pack(T* at, const Pack<T, kElements>& pack) {
  if constexpr (sizeof(pack) == 16)
    *reinterpret_cast<uint4*>(at) = *reinterpret_cast<const uint4*>(&pack);
  else
    *reinterpret_cast<Pack<T, kElements>*>(at) = pack;
}

// Sums over the 32 lanes of a warp; every lane gets the result. The order is fixed.
__device__ __forceinline__ float warp_sum(float value) {
#pragma unroll
  for (int offset = 16; offset > 0; offset /= 2) value += __shfl_xor_sync(0xFFFFFFFFu, value, offset);
  return value;
}
__device__ __forceinline__ float warp_max(float value) {
#pragma unroll
  for (int offset = 16; offset > 0; offset /= 2) value = fmaxf(value, __shfl_xor_sync(0xFFFFFFFFu, value, offset));
  return value;
}

}  // namespace tri::cuda
