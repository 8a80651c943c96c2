// Element types of device memory, and bfloat16 on the host.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "io/base/enum_names.h"

namespace tri {

enum class Dtype { kF32, kBF16, kI32, kE4M3, kE5M2, kI64 };

template <>
struct EnumNames<Dtype> {
  static constexpr std::array table{
      std::pair{Dtype::kF32, std::string_view("fp32")},  std::pair{Dtype::kBF16, std::string_view("bf16")},
      std::pair{Dtype::kI32, std::string_view("int32")}, std::pair{Dtype::kE4M3, std::string_view("e4m3")},
      std::pair{Dtype::kE5M2, std::string_view("e5m2")}, std::pair{Dtype::kI64, std::string_view("int64")}};
};

constexpr bool is_fp8(Dtype dtype) { return dtype == Dtype::kE4M3 || dtype == Dtype::kE5M2; }
constexpr size_t dtype_bytes(Dtype dtype) {
  if (is_fp8(dtype)) return 1;
  return dtype == Dtype::kBF16 ? 2 : dtype == Dtype::kI64 ? 8 : 4;
}

// bfloat16 storage: the upper half of a float, rounded to nearest even. NaN stays NaN. Arithmetic is done in float.
struct bf16 {
  uint16_t bits = 0;

  bf16() = default;
  explicit bf16(float value) {
    const uint32_t raw = std::bit_cast<uint32_t>(value);
    const bool is_nan = (raw & 0x7FFFFFFF) > 0x7F800000;
    bits = static_cast<uint16_t>(is_nan ? (raw >> 16) | 0x40 : (raw + 0x7FFF + ((raw >> 16) & 1)) >> 16);
  }
  explicit operator float() const { return std::bit_cast<float>(uint32_t{bits} << 16); }
};
static_assert(sizeof(bf16) == 2);

template <class T>
constexpr Dtype dtype_of();
template <>
constexpr Dtype dtype_of<float>() {
  return Dtype::kF32;
}
template <>
constexpr Dtype dtype_of<bf16>() {
  return Dtype::kBF16;
}
template <>
constexpr Dtype dtype_of<int32_t>() {
  return Dtype::kI32;
}
template <>
constexpr Dtype dtype_of<int64_t>() {
  return Dtype::kI64;
}

}  // namespace tri
