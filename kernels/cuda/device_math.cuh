// Element access shared by all kernels: 16-byte vectors of a storage type, converted to fp32 and back.
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

// 2^x by the special-function unit, without its handling of denormals.
__device__ __forceinline__ float exp2_fast(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// log2(x) by the special-function unit.
__device__ __forceinline__ float log2_fast(float x) {
  float y;
  asm("lg2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// c · tanh(x / c) = c - 2c / (1 + 2^(x · exponent)), where exponent = softcap_exponent(c). The absolute error is a few
// roundings of c. A NaN stays one.
__host__ __device__ __forceinline__ float softcap_exponent(float softcap) { return 2.0f * kLog2E / softcap; }
__device__ __forceinline__ float capped(float x, float softcap, float exponent) {
  return softcap - __fdividef(2.0f * softcap, 1.0f + exp2_fast(x * exponent));
}

// kSize elements of T, loaded and stored together: sixteen bytes if rows are aligned, otherwise one element.
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

// A pack's elements in fp32, and back: a bfloat16 is the upper half of a float; two are rounded by one instruction.
template <class T, int kElements>
__device__ __forceinline__ void unpack(const Pack<T, kElements>& pack, float (&x)[kElements]) {
  if constexpr (sizeof(T) == 2 && kElements % 2 == 0) {
    uint32_t words[kElements / 2];
    memcpy(words, &pack, sizeof words);
#pragma unroll
    for (int i = 0; i < kElements; i += 2) {
      x[i] = __uint_as_float(words[i / 2] << 16);
      x[i + 1] = __uint_as_float(words[i / 2] & 0xFFFF0000u);
    }
  } else {
#pragma unroll
    for (int i = 0; i < kElements; ++i) x[i] = to_float(pack.item[i]);
  }
}
template <class T, int kElements>
__device__ __forceinline__ Pack<T, kElements> pack_floats(const float (&x)[kElements]) {
  Pack<T, kElements> pack;
  if constexpr (sizeof(T) == 2 && kElements % 2 == 0) {
    __nv_bfloat162 pairs[kElements / 2];
#pragma unroll
    for (int i = 0; i < kElements; i += 2) pairs[i / 2] = __floats2bfloat162_rn(x[i], x[i + 1]);
    memcpy(&pack, pairs, sizeof pairs);
  } else {
#pragma unroll
    for (int i = 0; i < kElements; ++i) pack.item[i] = from_float<T>(x[i]);
  }
  return pack;
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
