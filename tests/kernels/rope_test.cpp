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

  int64_t rows() const { return batch * seq_len; }
  int64_t width() const { return int64_t{kv_heads} * (group + 2) * head_size; }
};

template <class Check>
void for_each_case(Check check) {
  for (const Case& c : {Case{1, 1, 1, 1, 2}, Case{3, 5, 1, 2, 4}, Case{1, 17, 3, 1, 6}, Case{2, 64, 2, 4, 64},
                        Case{1, 257, 1, 3, 128}, Case{4, 128, 2, 1, 80}}) {
    SCOPED_TRACE(fmt::format("B {} T {} NKV {} G {} HS {}", c.batch, c.seq_len, c.kv_heads, c.group, c.head_size));
    check(c);
  }
}

// Each pair (i, i + HS/2) of a query or key is a complex number rotated by t · theta^(-2i/HS).
Values reference(const Case& c, Values qkv) {
  const int half = c.head_size / 2;
  for (int64_t r = 0; r < c.rows(); ++r)
    for (int head = 0; head < c.kv_heads * (c.group + 2); ++head) {
      if (head % (c.group + 2) == c.group + 1) continue;  // a value
      double* x = &qkv[r * c.width() + head * c.head_size];
      for (int i = 0; i < half; ++i) {
        const double angle = static_cast<double>(r % c.seq_len) * std::pow(kTheta, -2.0 * i / c.head_size);
        const auto turned = std::complex(x[i], x[i + half]) * std::polar(1.0, angle);
        x[i] = turned.real(), x[i + half] = turned.imag();
      }
    }
  return qkv;
}

Buffer run(const Case& c, Pass pass, const Values& values, Dtype dtype) {
  const Buffer table(Dtype::kF32, {c.seq_len, c.head_size / 2, 2}), qkv(dtype, {c.rows(), c.width()}, values);
  fill_rope_table(Tensor(table).as<float>(), static_cast<int>(c.seq_len), c.head_size, kTheta);
  const Rope args{.pass = pass, .out = qkv, .inp = qkv, .table = table, .num_kv_heads = c.kv_heads, .group = c.group};
  check(args);
  cpu::rope(args);
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

TEST(Rope, values_keep_their_bits_and_position_zero_does_not_turn) {
  for_each_case([](const Case& c) {
    const Values qkv = random_values(c.rows() * c.width(), "qkv");
    const Values out = run(c, Pass::kForward, qkv, Dtype::kF32).values();
    for (size_t i = 0; i < qkv.size(); ++i) {
      const int64_t row = static_cast<int64_t>(i) / c.width(), head = static_cast<int64_t>(i) % c.width() / c.head_size;
      const bool is_value = head % (c.group + 2) == c.group + 1;
      if (is_value || row % c.seq_len == 0) {
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
    fill_rope_table(Tensor(table).as<float>(), static_cast<int>(c.seq_len), c.head_size, kTheta);
    for (const Dtype dtype : {Dtype::kF32, Dtype::kBF16})
      for (const Pass pass : {Pass::kForward, Pass::kBackward})
        for (const QkvOrder from : kOrders)
          for (const QkvOrder to : kOrders) {
            const Buffer inp(dtype, {c.rows(), c.width()}, in(from, values)), out(dtype, {c.rows(), c.width()});
            const Rope args{.pass = pass,
                            .out = out,
                            .inp = inp,
                            .table = table,
                            .num_kv_heads = c.kv_heads,
                            .group = c.group,
                            .out_order = to,
                            .inp_order = from};
            check(args);
            cpu::rope(args);
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
  EXPECT_THROW(fill_rope_table(scratch.data(), 4, 5, kTheta), Fatal);
}

}  // namespace
}  // namespace tri::test
