// FP8 on the host: the two formats of OCP's specification (and arXiv 2209.05433) as GPUs convert to them.
//   E4M3  sign, 4 bits of exponent (bias 7),  3 of mantissa: up to 448,   least 2^-9;  one NaN, no infinity
//   E5M2  sign, 5 bits of exponent (bias 15), 2 of mantissa: up to 57344, least 2^-16; NaNs and infinities
// Conversions round to nearest even and saturate: a value beyond the largest finite number, infinities included,
// becomes that number (CUDA's __NV_SATFINITE), so infinities of E5M2 are never produced. NaN becomes 0x7F.
#pragma once

#include <array>
#include <bit>
#include <cstdint>
#include <limits>

#include "io/base/error.h"
#include "kernels/core/dtype.h"

namespace tri {

struct Fp8Format {
  int mantissa_bits;
  int bias;
  uint8_t largest;  // bits of the largest finite number
  float limit;      // that number
  // the largest exponent encodes infinity and NaNs; otherwise all of its patterns but one are numbers
  bool has_infinity;
  int least_normal;  // exponent of two
};
inline constexpr Fp8Format kE4M3Format{3, 7, 0x7E, 448.0f, false, -6};
inline constexpr Fp8Format kE5M2Format{2, 15, 0x7B, 57344.0f, true, -14};

constexpr const Fp8Format& fp8_format(Dtype dtype) { return dtype == Dtype::kE4M3 ? kE4M3Format : kE5M2Format; }

// Returns the number that the bits `code` encode.
constexpr float fp8_decode(uint8_t code, const Fp8Format& format) {
  const int exponent = (code & 0x7F) >> format.mantissa_bits, mantissa = code & ((1 << format.mantissa_bits) - 1);
  const float sign = (code & 0x80) != 0 ? -1.0f : 1.0f;
  if ((code & 0x7F) > format.largest)
    return format.has_infinity && mantissa == 0 ? sign * std::numeric_limits<float>::infinity()
                                                : std::numeric_limits<float>::quiet_NaN();
  const int significand = exponent == 0 ? mantissa : mantissa | 1 << format.mantissa_bits;
  const int power = (exponent == 0 ? 1 : exponent) - format.bias - format.mantissa_bits;
  return sign * static_cast<float>(significand) * std::bit_cast<float>(static_cast<uint32_t>(power + 127) << 23);
}

constexpr uint8_t fp8_encode(float value, const Fp8Format& format) {
  const uint32_t raw = std::bit_cast<uint32_t>(value), size = raw & 0x7FFFFFFF;
  const auto sign = static_cast<uint8_t>(raw >> 24 & 0x80);
  if (size > 0x7F800000) return 0x7F;
  const auto least_normal = static_cast<uint32_t>(format.least_normal + 127) << 23;
  if (size < least_normal) {
    // Multiples of the least number, rounded by an addition whose last bit is worth one of them. If rounding overflows
    // the mantissa, the result encodes the least normal number.
    constexpr float kRound = 12582912.0f;  // 1.5 · 2^23
    const auto per_unit = static_cast<uint32_t>(format.mantissa_bits - format.least_normal + 127) << 23;
    const float multiple = std::bit_cast<float>(size) * std::bit_cast<float>(per_unit) + kRound;
    return sign | static_cast<uint8_t>(std::bit_cast<uint32_t>(multiple) - std::bit_cast<uint32_t>(kRound));
  }
  const int dropped = 23 - format.mantissa_bits;
  const uint32_t rounded = size + (1u << (dropped - 1)) - 1 + (size >> dropped & 1);
  const uint32_t code = (rounded >> dropped) - (static_cast<uint32_t>(127 - format.bias) << format.mantissa_bits);
  return sign | (code > format.largest ? format.largest : static_cast<uint8_t>(code));
}

// The values of all 256 bit patterns.
using Fp8Table = std::array<float, 256>;
constexpr Fp8Table make_fp8_table(const Fp8Format& format) {
  Fp8Table table{};
  for (int code = 0; code < 256; ++code)
    table[static_cast<size_t>(code)] = fp8_decode(static_cast<uint8_t>(code), format);
  return table;
}
inline constexpr Fp8Table kE4M3Table = make_fp8_table(kE4M3Format), kE5M2Table = make_fp8_table(kE5M2Format);
constexpr const Fp8Table& fp8_table(Dtype dtype) { return dtype == Dtype::kE4M3 ? kE4M3Table : kE5M2Table; }

// Returns the bytes of an FP8 tensor.
template <class Tensor>
uint8_t* fp8_bytes(const Tensor& tensor) {
  TRI_REQUIRE(tensor.empty() || is_fp8(tensor.dtype), "{} is not FP8", tensor.shape_text());
  return static_cast<uint8_t*>(tensor.data);
}

}  // namespace tri
