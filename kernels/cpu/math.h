// Functions that the compiler can vectorise: straight-line arithmetic, no tables, no branches.
#pragma once

#include <bit>
#include <cstdint>

namespace tri::cpu {

// e^x within 2 ulp. Zero below -87.336 (no denormals), +inf above 88.722; NaN stays NaN.
// Cody-Waite reduction x = n · ln 2 + r with |r| <= ln 2 / 2, then the degree-6 polynomial of Cephes' expf.
inline float exp_f32(float x) {
  constexpr float kLeast = -87.33654f;  // e^kLeast is the least normal float
  constexpr float kMost = 88.72283f;
  // Uses masks because compilers turn selections into branches around all that follows. NaN counts as inside.
  const int32_t below = -static_cast<int32_t>(x < kLeast), above = -static_cast<int32_t>(x > kMost);
  const int32_t inside = ~(below | above);
  const float inner = std::bit_cast<float>(std::bit_cast<int32_t>(x) & inside);
  constexpr float kRound = 12582912.0f;  // 1.5 · 2^23: adding it rounds to an integer, kept in the low bits
  const float shifted = inner * 1.44269504088896341f + kRound;
  const float n = shifted - kRound;
  float r = inner - n * 0.693359375f;  // ln 2, high part: the product is exact
  r = r - n * -2.12194440e-4f;         // low part
  float p = 1.9875691500e-4f;
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * r * r + r + 1.0f;
  // n is in [-126, 128]. The scale is applied as two factors because 2^128 is not a float.
  const int32_t exponent = std::bit_cast<int32_t>(shifted) - std::bit_cast<int32_t>(kRound);
  const int32_t half = exponent >> 1;
  const float scale1 = std::bit_cast<float>((half + 127) << 23);
  const float scale2 = std::bit_cast<float>((exponent - half + 127) << 23);
  constexpr int32_t kInfinity = 0x7F800000;
  return std::bit_cast<float>((std::bit_cast<int32_t>(p * scale1 * scale2) & inside) | (above & kInfinity));
}

// 1 / (1 + e^-x)
inline float sigmoid(float x) { return 1.0f / (1.0f + exp_f32(-x)); }

}  // namespace tri::cpu
