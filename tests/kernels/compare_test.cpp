// The comparisons of the GPU tests must detect the output of a broken kernel.
#include "tests/kernels/compare.h"

#include "kernels/cpu/ops.h"

namespace tri::test {
namespace {

constexpr int kSeqLen = 512, kHeadSize = 64;
constexpr int64_t kRow = 3 * kHeadSize;

// Returns dqkv (T, 3 · HS) of one head.
Values attention_gradient() {
  const Buffer qkv(Dtype::kBF16, {kSeqLen, kRow}, random_values(kSeqLen * kRow, "qkv")),
      dout(Dtype::kBF16, {kSeqLen, kHeadSize}, random_values(int64_t{kSeqLen} * kHeadSize, "dout")),
      out(Dtype::kBF16, {kSeqLen, kHeadSize}), dqkv(Dtype::kBF16, {kSeqLen, kRow});
  const Buffer lse(Dtype::kF32, {1, 1, kSeqLen}), delta(Dtype::kF32, {1, 1, kSeqLen});
  cpu::attention_forward(
      {.out = out, .lse = lse, .qkv = qkv, .seq_len = kSeqLen, .num_kv_heads = 1, .group = 1, .scale = 0.125f});
  cpu::attention_backward({.dqkv = dqkv,
                           .delta = delta,
                           .dout = dout,
                           .out = out,
                           .lse = lse,
                           .qkv = qkv,
                           .seq_len = kSeqLen,
                           .num_kv_heads = 1,
                           .group = 1,
                           .scale = 0.125f});
  return dqkv.values();
}

TEST(Compare, vectors_see_the_lost_gradients_of_the_last_keys) {
  const Values expected = attention_gradient();
  Values lost = expected;
  for (int t = kSeqLen - 16; t < kSeqLen; ++t)
    for (int64_t c = kHeadSize; c < kRow; ++c) lost[static_cast<size_t>(t * kRow + c)] = 0;  // key and value
  const Values apart = minus(lost, expected);
  EXPECT_LT(std::sqrt(dot(apart, apart)), 0.02 * std::sqrt(dot(expected, expected)))
      << "one norm over all of it would have seen this";
  EXPECT_NE(difference(lost, expected, vectors(2e-2, kHeadSize)), "");
  for (const int64_t c : {int64_t{kHeadSize}, int64_t{2 * kHeadSize}}) {  // a key's column, a value's column
    Values one = expected;
    for (int i = 0; i < kHeadSize; ++i) one[static_cast<size_t>((kSeqLen - 1) * kRow + c + i)] = 0;
    EXPECT_NE(difference(one, expected, vectors(2e-2, kHeadSize)), "") << c;
  }
}

TEST(Compare, vectors_allow_the_roundings_of_bf16) {
  const Values expected = attention_gradient();
  Values rounded = expected;
  for (size_t i = 0; i < rounded.size(); ++i) rounded[i] *= 1.0 + (i % 2 == 0 ? 0x1p-8 : -0x1p-8);
  EXPECT_EQ(difference(rounded, expected, vectors(2e-2, kHeadSize)), "");
}

TEST(Compare, what_is_not_finite_must_be_so_in_both) {
  const Values expected = {1, 2, -3, NAN, INFINITY, -INFINITY};
  EXPECT_EQ(difference(expected, expected, same_bits), "");
  for (const Comparison& by : {same_bits, elements(0.5), vectors(0.5, 3)})
    for (size_t i = 0; i < expected.size(); ++i)
      for (const double other : {double{NAN}, double{INFINITY}, -double{INFINITY}, 5.0}) {
        Values actual = expected;
        actual[i] = other;
        const bool same = std::isnan(other) ? std::isnan(expected[i]) : other == expected[i];
        EXPECT_EQ(difference(actual, expected, by).empty(), same) << i << " " << other;
      }
}

TEST(Compare, elements_are_judged_one_by_one) {
  const Values expected = {1, -1, 0, 1000};
  for (size_t i = 0; i < expected.size(); ++i) {
    Values actual = expected;
    actual[i] += 600;  // the root mean square is 500
    EXPECT_EQ(difference(actual, expected, elements(0.9)).empty(), i == 3) << i;
    EXPECT_EQ(difference(actual, expected, elements(1.3)), "") << i;
  }
}

TEST(Compare, random_arrays_differ_from_other_random_arrays) {
  constexpr size_t kCount = 4000;
  Values expected;
  for (size_t i = 0; i < kCount; ++i)
    expected.push_back((i % 2 == 0 ? 1 : -1) * (1 + static_cast<double>(i % 100) / 128));
  const auto changed = [&](size_t numbers, double bf16_units) {
    Values actual = expected;
    for (size_t i = 0; i < numbers; ++i) actual[3 + i * 7] += bf16_units / 128;
    return difference(actual, expected, draws(1e-6));
  };
  EXPECT_EQ(changed(6, 1), "");  // one in 1000, and two
  EXPECT_EQ(changed(6, -1), "");
  EXPECT_NE(changed(7, 1), "");
  EXPECT_NE(changed(1, 2), "") << "no neighbour";
  EXPECT_TRUE(are_next_in_bf16(0x1p-133, -0.0));
  EXPECT_FALSE(are_next_in_bf16(1, -1));
}

}  // namespace
}  // namespace tri::test
