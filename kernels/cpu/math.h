// exp and tanh that the compiler can vectorise: straight-line arithmetic, no tables, no branches.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>

namespace tri::cpu {

// e^x, about 1 ulp over the normal range; 0 below -87.33 (no denormals), +inf above 88.72, NaN stays NaN.
// Cody-Waite reduction x = n·ln2 + r, |r| <= ln2/2, then the degree-6 minimax polynomial of Cephes' expf.
inline float fast_exp(float x) {
  const float clamped = x < -87.33654f ? -87.33654f : (x > 88.72283f ? 88.72283f : x);  // NaN passes both
  constexpr float kRound = 12582912.0f;  // 1.5 · 2^23: adding it rounds to an integer
  const float shifted = clamped * 1.44269504088896341f + kRound;
  const float n = shifted - kRound;
  float r = clamped - n * 0.693359375f;
  r = r - n * -2.12194440e-4f;
  float p = 1.9875691500e-4f;
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * r * r + r + 1.0f;
  // n lies in [-126, 128]: scale in two steps, since 2^128 is no float.
  const int32_t exponent = std::bit_cast<int32_t>(shifted) - std::bit_cast<int32_t>(kRound);
  const int32_t half = exponent >> 1;
  const float scale1 = std::bit_cast<float>((half + 127) << 23);
  const float scale2 = std::bit_cast<float>((exponent - half + 127) << 23);
  float result = p * scale1 * scale2;
  result = x < -87.33654f ? 0.0f : result;
  result = x > 88.72283f ? INFINITY : result;
  return x != x ? x : result;
}

// tanh x = 1 - 2 / (e^2x + 1), absolute error about 1e-7.
inline float fast_tanh(float x) { return 1.0f - 2.0f / (fast_exp(2.0f * x) + 1.0f); }

inline float sigmoid(float x) { return 1.0f / (1.0f + fast_exp(-x)); }

}  // namespace tri::cpu
