// kernels/cpu/math.h against the C library, and bf16 rounding against its definition.
#include "kernels/cpu/math.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

#include "kernels/core/dtype.h"

namespace tri::cpu {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

// Returns the distance in units of the last place of `expected` (as a float).
double ulps(float actual, double expected) {
  const float nearest = static_cast<float>(expected);
  const double ulp = std::nextafter(std::abs(nearest), kInf) - static_cast<double>(std::abs(nearest));
  return std::abs(actual - expected) / ulp;
}

TEST(ExpF32, is_within_two_ulp_over_its_range) {
  double worst = 0;
  for (float x = -87.33f; x <= 88.72f; x += 0.000311f) worst = std::max(worst, ulps(exp_f32(x), std::exp(double{x})));
  // Tiny arguments of both signs, whose result is close to 1.
  for (float x = 1e-38f; x < 1.0f; x *= 1.37f)
    for (const float y : {x, -x}) worst = std::max(worst, ulps(exp_f32(y), std::exp(double{y})));
  EXPECT_LE(worst, 2.0);
}

TEST(ExpF32, is_monotone_between_neighbours_of_the_range) {
  float previous = 0;
  for (float x = -90.0f; x <= 90.0f; x += 0.01f) {
    const float value = exp_f32(x);
    EXPECT_GE(value, previous) << x;
    previous = value;
  }
}

TEST(ExpF32, keeps_the_special_values_of_exp) {
  EXPECT_EQ(exp_f32(0.0f), 1.0f);
  EXPECT_EQ(exp_f32(-0.0f), 1.0f);
  EXPECT_EQ(exp_f32(-kInf), 0.0f);
  EXPECT_FALSE(std::signbit(exp_f32(-kInf)));
  EXPECT_EQ(exp_f32(-1e30f), 0.0f);
  EXPECT_EQ(exp_f32(-88.0f), 0.0f);  // denormal in the C library
  EXPECT_EQ(exp_f32(kInf), kInf);
  EXPECT_EQ(exp_f32(1e30f), kInf);
  EXPECT_EQ(exp_f32(88.8f), kInf);
  EXPECT_TRUE(std::isfinite(exp_f32(88.72f)));
  EXPECT_TRUE(std::isnan(exp_f32(kNan)));
  EXPECT_TRUE(std::isnan(exp_f32(-kNan)));
  EXPECT_TRUE(std::isnan(exp_f32(std::bit_cast<float>(0x7FFFFFFF))));
}

TEST(Sigmoid, keeps_its_digits_in_both_tails) {
  for (float x = -80.0f; x <= 80.0f; x += 0.0137f) {
    const double expected = 1.0 / (1.0 + std::exp(-double{x}));
    EXPECT_LE(std::abs(sigmoid(x) - expected), 4e-7 * expected) << x;
  }
  EXPECT_EQ(sigmoid(kInf), 1.0f);
  EXPECT_EQ(sigmoid(-kInf), 0.0f);
  EXPECT_TRUE(std::isnan(sigmoid(kNan)));
}

TEST(Bf16, rounds_to_nearest_even) {
  for (uint32_t upper = 0; upper < 0x7F80; ++upper) {  // every finite positive bf16 and the gap above it
    const auto rounded = [&](uint32_t lower) { return bf16(std::bit_cast<float>(upper << 16 | lower)).bits; };
    ASSERT_EQ(rounded(0), upper);
    ASSERT_EQ(rounded(0x7FFF), upper);
    ASSERT_EQ(rounded(0x8000), upper + (upper & 1));  // a tie
    ASSERT_EQ(rounded(0x8001), upper + 1);
  }
  EXPECT_EQ(static_cast<float>(bf16(-kInf)), -kInf);
  EXPECT_TRUE(std::isnan(static_cast<float>(bf16(kNan))));
  EXPECT_TRUE(std::isnan(static_cast<float>(bf16(std::bit_cast<float>(0x7F800001)))));  // payload in the lower half
}

}  // namespace
}  // namespace tri::cpu
