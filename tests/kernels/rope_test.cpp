// rope against float64 complex rotations, and its backward pass against finite differences.
#include "kernels/rope.h"

#include <gtest/gtest.h>

#include <complex>

#include "io/base/error.h"
#include "kernels/cpu/ops.h"
#include "tests/kernels/qkv_rows.h"

namespace tri::test {
namespace {

constexpr double kTheta = 10000;

struct Case {
  int64_t batch, seq_len;
  int kv_heads, group, head_size;
  RopeScaling scaling = RopeScaling::kNone;
  double fraction = 1;

  int64_t rows() const { return batch * seq_len; }
  int64_t width() const { return int64_t{kv_heads} * (group + 2) * head_size; }
  RopeAngles angles() const {
    return {
        .theta = kTheta, .fraction = fraction, .scaling = scaling, .factor = 4, .original_seq_len = 32, .beta_fast = 4};
  }
};

template <class Check>
void for_each_case(Check check) {
  for (const Case& c :
       {Case{1, 1, 1, 1, 2}, Case{3, 5, 1, 2, 4}, Case{1, 17, 3, 1, 6}, Case{2, 64, 2, 4, 64}, Case{1, 257, 1, 3, 128},
        Case{4, 128, 2, 1, 80}, Case{1, 70, 1, 2, 16, RopeScaling::kLinear},
        Case{1, 70, 2, 1, 16, RopeScaling::kLlama3}, Case{2, 70, 1, 2, 16, RopeScaling::kYarn},
        Case{1, 40, 2, 2, 16, RopeScaling::kNone, 0.25}, Case{1, 70, 1, 2, 16, RopeScaling::kYarn, 0.5}}) {
    SCOPED_TRACE(fmt::format("B {} T {} NKV {} G {} HS {} {} {}", c.batch, c.seq_len, c.kv_heads, c.group, c.head_size,
                             enum_name(c.scaling), c.fraction));
    check(c);
  }
}

// Each pair (i, i + HS/2) of a query or key is a complex number rotated by t · theta^(-2i/HS). If only D elements
// rotate, D takes the place of HS.
Values reference(const Case& c, Values qkv) {
  const int half = c.head_size / 2;
  const std::vector<double> frequencies = rope_frequencies(c.angles(), c.head_size);
  const double scale = rope_attention_factor(c.angles());
  for (int64_t r = 0; r < c.rows(); ++r)
    for (int head = 0; head < c.kv_heads * (c.group + 2); ++head) {
      if (head % (c.group + 2) == c.group + 1) continue;  // a value
      double* x = &qkv[r * c.width() + head * c.head_size];
      for (int i = 0; i < static_cast<int>(c.fraction * half); ++i) {
        const double angle = static_cast<double>(r % c.seq_len) * frequencies[static_cast<size_t>(i)];
        const auto turned = std::complex(x[i], x[i + half]) * std::polar(scale, angle);
        x[i] = turned.real(), x[i + half] = turned.imag();
      }
    }
  return qkv;
}

Buffer run(const Case& c, Pass pass, const Values& values, Dtype dtype) {
  const Buffer table(Dtype::kF32, {c.seq_len, c.head_size / 2, 2}), qkv(dtype, {c.rows(), c.width()}, values);
  fill_rope_table(Tensor(table).as<float>(), static_cast<int>(c.seq_len), c.head_size, c.angles());
  run_checked(cpu::rope,
              {.pass = pass, .out = qkv, .inp = qkv, .table = table, .num_kv_heads = c.kv_heads, .group = c.group});
  return qkv;
}

TEST(Rope, forward_matches_complex_rotation) {
  for_each_case([](const Case& c) {
    const Values qkv = random_values(c.rows() * c.width(), "qkv");
    expect_close("qkv", run(c, Pass::kForward, qkv, Dtype::kF32).values(), reference(c, qkv));
    expect_close("bf16 qkv", run(c, Pass::kForward, qkv, Dtype::kBF16).values(), reference(c, qkv), kBf16Tolerance);
  });
}

TEST(Rope, backward_matches_finite_differences_of_float64) {
  for_each_case([](const Case& c) {
    Values qkv = random_values(c.rows() * c.width(), "qkv");
    const Values dout = random_values(c.rows() * c.width(), "dout");
    const Values gradient = run(c, Pass::kBackward, dout, Dtype::kF32).values();
    expect_gradient("qkv", gradient, qkv, [&] { return dot(dout, reference(c, qkv)); });
    expect_close("bf16 gradient", run(c, Pass::kBackward, dout, Dtype::kBF16).values(), gradient, kBf16Tolerance);
  });
}

// Values that transformers 4.48 computes in fp32 for published configs.
TEST(RopeFrequencies, of_llama_3_2_and_of_qwen_with_yarn_are_those_of_transformers) {
  const auto expect = [](const RopeAngles& angles, int head_size, std::vector<std::pair<int, double>> values) {
    const std::vector<double> frequencies = rope_frequencies(angles, head_size);
    ASSERT_EQ(frequencies.size(), static_cast<size_t>(head_size) / 2);
    for (const auto& [i, value] : values)
      EXPECT_NEAR(frequencies[static_cast<size_t>(i)], value, 5e-7 * value) << enum_name(angles.scaling) << " " << i;
  };
  const RopeAngles llama{.theta = 5e5, .scaling = RopeScaling::kLlama3, .factor = 32, .original_seq_len = 8192};
  expect(llama, 64,
         {{0, 1.0},
          {13, 0.00483942124992609},
          {14, 0.0032114461064338684},
          {15, 0.0012905480107292533},
          {16, 0.000429556705057621},
          {17, 9.708286233944818e-05},
          {18, 1.9461638657958247e-05},
          {31, 9.418306490260875e-08}});
  EXPECT_EQ(rope_attention_factor(llama), 1);
  const RopeAngles qwen{.theta = 1e6, .scaling = RopeScaling::kYarn, .factor = 4, .original_seq_len = 32768};
  expect(qwen, 128,
         {{0, 1.0},
          {23, 0.006978305988013744},
          {24, 0.005375321488827467},
          {30, 0.0010643609566614032},
          {39, 6.490394298452884e-05},
          {40, 4.4456985051510856e-05},
          {63, 3.102344408034696e-07}});
  EXPECT_NEAR(rope_attention_factor(qwen), 1.138629436111989, 1e-14);
  expect({.theta = 1e4, .scaling = RopeScaling::kLinear, .factor = 8}, 4, {{0, 0.125}, {1, 0.00125}});
}

TEST(RopeFrequencies, of_a_part_of_a_head_are_those_of_a_smaller_head) {
  std::vector<double> expected = rope_frequencies({}, 16);
  expected.resize(32, 0.0);
  EXPECT_EQ(rope_frequencies({.fraction = 0.25}, 64), expected);
  EXPECT_EQ(rotated_elements(0.3, 64), 19);
  EXPECT_THROW(rope_frequencies({.fraction = 0.3}, 64), Fatal);
}

TEST(RopeFrequencies, of_yarn_are_defined_where_the_ramp_is_empty_and_the_attention_factor_is_given) {
  RopeAngles yarn{.scaling = RopeScaling::kYarn, .factor = 2, .original_seq_len = 1};
  EXPECT_EQ(rope_frequencies(yarn, 16), rope_frequencies({}, 16)) << "last is -1, before first: no pair is divided";
  yarn.original_seq_len = 6;  // first and last are 0
  EXPECT_EQ(rope_frequencies(yarn, 8)[0], 1);
  EXPECT_EQ(rope_frequencies(yarn, 8)[1], rope_frequencies({}, 8)[1] / 2);
  yarn.original_seq_len = 7;  // first and last are 0 and 1
  EXPECT_EQ(rope_frequencies(yarn, 8)[1], rope_frequencies({}, 8)[1] / 2);
  yarn.factor = 1;
  EXPECT_EQ(rope_attention_factor(yarn), 1);
  yarn.attention_factor = 0.75;
  EXPECT_EQ(rope_attention_factor(yarn), 0.75);
}

TEST(Rope, values_keep_their_bits_and_position_zero_does_not_turn) {
  for_each_case([](const Case& c) {
    const Values qkv = random_values(c.rows() * c.width(), "qkv");
    const Values out = run(c, Pass::kForward, qkv, Dtype::kF32).values();
    for (size_t i = 0; i < qkv.size(); ++i) {
      const int64_t row = static_cast<int64_t>(i) / c.width(), head = static_cast<int64_t>(i) % c.width() / c.head_size;
      const bool is_value = head % (c.group + 2) == c.group + 1;
      if (is_value || (row % c.seq_len == 0 && c.scaling != RopeScaling::kYarn)) {
        ASSERT_EQ(out[i], qkv[i]) << i;
      }
    }
  });
}

TEST(Rope, two_runs_are_bit_identical) {
  for_each_case([](const Case& c) {
    const Values qkv = random_values(c.rows() * c.width(), "qkv");
    for (const Dtype dtype : {Dtype::kF32, Dtype::kBF16})
      EXPECT_TRUE(run(c, Pass::kForward, qkv, dtype).same_bits(run(c, Pass::kForward, qkv, dtype)));
  });
}

// From rows of either order to rows of either order, in other, poisoned memory: the bits equal those of the rotation in
// place, values are copied, and the input is unchanged.
TEST(Rope, changes_the_order_of_heads_and_no_bit) {
  for_each_case([](const Case& c) {
    const Values values = random_values(c.rows() * c.width(), "qkv");
    const auto in = [&](QkvOrder order, const Values& grouped) {
      return rows_in(order, grouped, c.kv_heads, c.group, c.head_size);
    };
    const Buffer table(Dtype::kF32, {c.seq_len, c.head_size / 2, 2});
    fill_rope_table(Tensor(table).as<float>(), static_cast<int>(c.seq_len), c.head_size, c.angles());
    for (const Dtype dtype : {Dtype::kF32, Dtype::kBF16})
      for (const Pass pass : {Pass::kForward, Pass::kBackward})
        for (const QkvOrder from : kOrders)
          for (const QkvOrder to : kOrders) {
            const Buffer inp(dtype, {c.rows(), c.width()}, in(from, values)), out(dtype, {c.rows(), c.width()});
            run_checked(cpu::rope, {.pass = pass,
                                    .out = out,
                                    .inp = inp,
                                    .table = table,
                                    .num_kv_heads = c.kv_heads,
                                    .group = c.group,
                                    .out_order = to,
                                    .inp_order = from});
            EXPECT_EQ(out.values(), in(to, run(c, pass, values, dtype).values()))
                << enum_name(from) << " to " << enum_name(to);
            EXPECT_EQ(inp.values(), in(from, values)) << enum_name(from) << " to " << enum_name(to);
          }
  });
}

TEST(Rope, check_refuses_what_does_not_fit) {
  const Buffer qkv(Dtype::kF32, {8, 4 * 6}), table(Dtype::kF32, {4, 3, 2}), longer(Dtype::kF32, {5, 3, 2});
  const Buffer out(Dtype::kF32, {8, 4 * 6}), half(Dtype::kBF16, {8, 4 * 6});
  const Rope fits{.out = qkv, .inp = qkv, .table = table, .num_kv_heads = 1, .group = 2};
  EXPECT_NO_THROW(check(fits));
  const auto refuses = [&](auto change) {
    Rope args = fits;
    change(args);
    EXPECT_THROW(check(args), Fatal);
  };
  refuses([](Rope& r) { r.group = 1; });
  refuses([&](Rope& r) { r.table = longer; });
  refuses([](Rope& r) { r.table = {}; });
  refuses([](Rope& r) { r.out = {}; });
  refuses([&](Rope& r) { r.out = half; });
  refuses([](Rope& r) { r.out_order = QkvOrder::kByKind; });
  Rope moved = fits;
  moved.out = out;
  moved.out_order = QkvOrder::kByKind;
  EXPECT_NO_THROW(check(moved));
  std::vector<float> scratch(64);
  EXPECT_THROW(fill_rope_table(scratch.data(), 4, 5, {}), Fatal);
}

}  // namespace
}  // namespace tri::test
