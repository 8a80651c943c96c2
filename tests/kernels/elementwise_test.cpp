// cast, accumulate and sum_parts against their definitions.
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

// Returns floats that bf16 cannot represent.
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

TEST(SumParts, adds_to_the_first_part_or_to_out_the_sum_of_the_others) {
  for (const int64_t count : {int64_t{1}, int64_t{3}, int64_t{1024}, int64_t{2500}})
    for (const int64_t num_parts : {1, 2, 3, 8})
      for (const Dtype dtype : kDtypes)
        for (const SumInto into : {SumInto::kOverwrite, SumInto::kAdd}) {
          SCOPED_TRACE(fmt::format("{} parts of {} {}", num_parts, count, enum_name(dtype)));
          const bool adds = into == SumInto::kAdd;
          const Values values = random_values(num_parts * count, "parts"), start = random_values(count, "start");
          const Buffer parts(dtype, {num_parts, count}, values);
          const Buffer out = adds ? Buffer(dtype, {count}, start) : Buffer(dtype, {count});
          check(SumParts{.into = into, .out = out, .parts = parts});
          cpu::sum_parts({.into = into, .out = out, .parts = parts});
          Values expected;
          for (int64_t i = 0; i < count; ++i) {
            const auto part = [&](int64_t p) { return static_cast<float>(values[static_cast<size_t>(p * count + i)]); };
            const int64_t first = adds ? 0 : 1;
            float others = first < num_parts ? part(first) : 0.0f;
            for (int64_t p = first + 1; p < num_parts; ++p) others += part(p);
            const float sum = (adds ? static_cast<float>(start[static_cast<size_t>(i)]) : part(0)) + others;
            expected.push_back(dtype == Dtype::kBF16 ? rounded(sum) : sum);
          }
          EXPECT_EQ(out.values(), expected);
        }
}

// A bucket's sum equals the result of the residual addition.
TEST(SumParts, gives_the_bits_of_residual_add_in_fp32) {
  const int64_t rows = 3, width = 257, count = rows * width;
  for (const int64_t num_parts : {2, 3, 8}) {
    const Buffer parts(Dtype::kF32, {num_parts, rows, width}, fine_values(num_parts * count));
    const Tensor all = parts;
    const Buffer sum(Dtype::kF32, {rows, width}), by_norm(Dtype::kF32, {rows, width});
    cpu::sum_parts({.out = sum, .parts = parts});
    cpu::residual_add({.out = by_norm, .inp = all.rows(0, 1).view({rows, width}), .add = all.rows(1, num_parts - 1)});
    EXPECT_TRUE(sum.same_bits(by_norm));
    cpu::sum_parts({.into = SumInto::kAdd, .out = sum, .parts = parts});
    cpu::residual_add({.out = by_norm, .inp = by_norm, .add = parts});
    EXPECT_TRUE(sum.same_bits(by_norm));
  }
}

TEST(Elementwise, check_refuses_what_does_not_fit) {
  const Buffer three(Dtype::kF32, {3}), four(Dtype::kF32, {4}), half(Dtype::kBF16, {3}), ids(Dtype::kI32, {3});
  EXPECT_THROW(check(Cast{.out = three, .inp = four}), Fatal);
  EXPECT_THROW(check(Cast{.out = three, .inp = ids}), Fatal);
  EXPECT_THROW(check(Cast{.out = three}), Fatal);
  EXPECT_THROW(check(Accumulate{.inout = three, .inp = four}), Fatal);
  EXPECT_THROW(check(Accumulate{.inout = three, .inp = half}), Fatal);
  const Buffer parts(Dtype::kF32, {2, 3}), none(Dtype::kF32, {0, 3});
  EXPECT_NO_THROW(check(SumParts{.out = three, .parts = parts}));
  EXPECT_THROW(check(SumParts{.out = four, .parts = parts}), Fatal);
  EXPECT_THROW(check(SumParts{.out = half, .parts = parts}), Fatal);
  EXPECT_THROW(check(SumParts{.out = three, .parts = three}), Fatal);
  EXPECT_THROW(check(SumParts{.out = three, .parts = none}), Fatal);
}

}  // namespace
}  // namespace tri::test
