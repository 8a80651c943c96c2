// cast and accumulate against their definitions.
#include "kernels/elementwise.h"

#include <gtest/gtest.h>

#include "io/base/error.h"
#include "kernels/cpu/ops.h"
#include "tests/kernels/op_test.h"

namespace tri::test {
namespace {

constexpr int64_t kCounts[] = {1, 3, 17, 256, 1023, 100003};
constexpr Dtype kDtypes[] = {Dtype::kF32, Dtype::kBF16};

double rounded(double value) { return static_cast<float>(bf16(static_cast<float>(value))); }

// Floats that bf16 does not hold.
Values fine_values(int64_t count) {
  Values values = random_values(count, "inp");
  for (double& value : values) value = static_cast<float>(value * 1.001);
  return values;
}

TEST(Cast, rounds_to_nearest_even_and_widens_exactly) {
  for (const int64_t count : kCounts)
    for (const Dtype from : kDtypes)
      for (const Dtype to : kDtypes) {
        const Buffer inp(from, {count}, fine_values(count)), out(to, {count});
        check(Cast{.out = out, .inp = inp});
        cpu::cast({.out = out, .inp = inp});
        Values expected = inp.values();
        if (to == Dtype::kBF16)
          for (double& value : expected) value = rounded(value);
        EXPECT_EQ(out.values(), expected);
      }
}

TEST(Cast, carries_infinity_and_nan) {
  const Buffer inp(Dtype::kF32, {3}, {INFINITY, -INFINITY, NAN}), out(Dtype::kBF16, {3});
  cpu::cast({.out = out, .inp = inp});
  const Values values = out.values();
  EXPECT_EQ(values[0], INFINITY);
  EXPECT_EQ(values[1], -INFINITY);
  EXPECT_TRUE(std::isnan(values[2]));
}

TEST(Accumulate, adds_in_fp32_and_rounds_once) {
  for (const int64_t count : kCounts)
    for (const Dtype dtype : kDtypes) {
      const Values start = random_values(count, "start"), added = random_values(count, "added");
      const Buffer inout(dtype, {count}, start), inp(dtype, {count}, added);
      check(Accumulate{.inout = inout, .inp = inp});
      cpu::accumulate({.inout = inout, .inp = inp});
      Values expected(start.size());
      for (size_t i = 0; i < start.size(); ++i) {
        const float sum = static_cast<float>(start[i]) + static_cast<float>(added[i]);
        expected[i] = dtype == Dtype::kBF16 ? rounded(sum) : sum;
      }
      EXPECT_EQ(inout.values(), expected);
      EXPECT_EQ(inp.values(), added);
    }
}

TEST(Elementwise, check_refuses_what_does_not_fit) {
  const Buffer three(Dtype::kF32, {3}), four(Dtype::kF32, {4}), half(Dtype::kBF16, {3}), ids(Dtype::kI32, {3});
  EXPECT_THROW(check(Cast{.out = three, .inp = four}), Fatal);
  EXPECT_THROW(check(Cast{.out = three, .inp = ids}), Fatal);
  EXPECT_THROW(check(Cast{.out = three}), Fatal);
  EXPECT_THROW(check(Accumulate{.inout = three, .inp = four}), Fatal);
  EXPECT_THROW(check(Accumulate{.inout = three, .inp = half}), Fatal);
}

}  // namespace
}  // namespace tri::test
