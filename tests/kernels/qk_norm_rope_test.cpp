// qk_norm_rope_forward and _backward against float64 and its finite differences, over odd and large shapes.
#include "kernels/qk_norm_rope.h"

#include <gtest/gtest.h>

#include <complex>

#include "kernels/cpu/ops.h"
#include "kernels/rope.h"
#include "tests/kernels/qkv_rows.h"

namespace tri::test {
namespace {

constexpr double kEps = 1e-6;
// Cosines and sines that are multiplied by an attention factor: the backward pass is no inverse rotation.
constexpr RopeAngles kAngles{
    .theta = 10000, .scaling = RopeScaling::kYarn, .factor = 4, .original_seq_len = 64, .beta_fast = 4};

struct Case {
  int64_t batch, seq_len;
  int kv_heads, group, head_size;
  float offset = 0;  // added to the weights

  int64_t rows() const { return batch * seq_len; }
  int64_t width() const { return int64_t{kv_heads} * (group + 2) * head_size; }
};

template <class Check>
void for_each_case(Check check) {
  for (const Case& c : {Case{1, 1, 1, 1, 2}, Case{3, 5, 1, 2, 4}, Case{1, 17, 3, 1, 6}, Case{2, 64, 2, 4, 64},
                        Case{1, 65, 1, 3, 128}, Case{3, 31, 2, 1, 80}, Case{2, 9, 2, 2, 12, 1}}) {
    SCOPED_TRACE(fmt::format("B {} T {} NKV {} G {} HS {} offset {}", c.batch, c.seq_len, c.kv_heads, c.group,
                             c.head_size, c.offset));
    check(c);
  }
}

struct Inputs {
  Values inp, query_weight, key_weight;
  explicit Inputs(const Case& c)
      : inp(random_values(c.rows() * c.width(), "inp")),
        query_weight(random_values(c.head_size, "query_weight")),
        key_weight(random_values(c.head_size, "key_weight")) {}
};

// Implements the definition, head by head, in grouped order.
Values reference(const Case& c, const Inputs& in) {
  Values rows = in.inp;
  const int half = c.head_size / 2;
  const std::vector<double> frequencies = rope_frequencies(kAngles, c.head_size);
  const double scale = rope_attention_factor(kAngles);
  for (int64_t r = 0; r < c.rows(); ++r)
    for (int head = 0; head < c.kv_heads * (c.group + 2); ++head) {
      const int slot = head % (c.group + 2);
      if (slot == c.group + 1) continue;  // a value
      const Values& weight = slot == c.group ? in.key_weight : in.query_weight;
      double* x = &rows[static_cast<size_t>(r * c.width() + head * c.head_size)];
      double squares = 0;
      for (int i = 0; i < c.head_size; ++i) squares += x[i] * x[i];
      const double rstd = 1 / std::sqrt(squares / c.head_size + kEps);
      for (int i = 0; i < half; ++i) {
        const auto size = static_cast<size_t>(i), other = static_cast<size_t>(i + half);
        const double angle = static_cast<double>(r % c.seq_len) * frequencies[size];
        const auto turned =
            std::complex(x[i] * rstd * (weight[size] + c.offset), x[i + half] * rstd * (weight[other] + c.offset)) *
            std::polar(scale, angle);
        x[i] = turned.real(), x[i + half] = turned.imag();
      }
    }
  return rows;
}

struct Operands {
  Buffer table, inp, query_weight, key_weight;
  Operands(const Case& c, const Inputs& in, Dtype dtype, QkvOrder order)
      : table(Dtype::kF32, {c.seq_len, c.head_size / 2, 2}),
        inp(dtype, {c.rows(), c.width()}, rows_in(order, in.inp, c.kv_heads, c.group, c.head_size)),
        query_weight(dtype, {c.head_size}, in.query_weight),
        key_weight(dtype, {c.head_size}, in.key_weight) {
    fill_rope_table(Tensor(table).as<float>(), static_cast<int>(c.seq_len), c.head_size, kAngles);
  }
};

Values forward(const Case& c, const Inputs& in, Dtype dtype, QkvOrder from, QkvOrder to) {
  const Operands on(c, in, dtype, from);
  const Buffer out(dtype, {c.rows(), c.width()});
  run_checked(cpu::qk_norm_rope_forward, {.eps = static_cast<float>(kEps),
                                          .offset = c.offset,
                                          .out = out,
                                          .inp = on.inp,
                                          .query_weight = on.query_weight,
                                          .key_weight = on.key_weight,
                                          .table = on.table,
                                          .num_kv_heads = c.kv_heads,
                                          .group = c.group,
                                          .out_order = to,
                                          .inp_order = from});
  return out.values();
}

struct Gradients {
  Values dinp, dquery_weight, dkey_weight;
};

// The weights' gradients begin at 1, because they are added to.
Gradients backward(const Case& c, const Inputs& in, const Values& dout, Dtype dtype, QkvOrder from, QkvOrder to,
                   bool in_place = false) {
  const Operands on(c, in, dtype, to);
  const Buffer gradient(dtype, {c.rows(), c.width()}, rows_in(from, dout, c.kv_heads, c.group, c.head_size));
  const Buffer other(dtype, {c.rows(), c.width()}), dinp = in_place ? gradient : other;
  const Buffer dquery(Dtype::kF32, {c.head_size}, Values(static_cast<size_t>(c.head_size), 1.0));
  const Buffer dkey(Dtype::kF32, {c.head_size}, Values(static_cast<size_t>(c.head_size), 1.0));
  run_checked(cpu::qk_norm_rope_backward, {.eps = static_cast<float>(kEps),
                                           .offset = c.offset,
                                           .dinp = dinp,
                                           .dquery_weight = dquery,
                                           .dkey_weight = dkey,
                                           .dout = in_place ? dinp : gradient,
                                           .inp = on.inp,
                                           .query_weight = on.query_weight,
                                           .key_weight = on.key_weight,
                                           .table = on.table,
                                           .num_kv_heads = c.kv_heads,
                                           .group = c.group,
                                           .dout_order = from,
                                           .dinp_order = to});
  return {dinp.values(), minus(dquery.values(), Values(static_cast<size_t>(c.head_size), 1.0)),
          minus(dkey.values(), Values(static_cast<size_t>(c.head_size), 1.0))};
}

TEST(QkNormRope, forward_matches_float64) {
  for_each_case([](const Case& c) {
    const Inputs in(c);
    const Values expected = reference(c, in);
    for (const QkvOrder from : kOrders)
      for (const QkvOrder to : kOrders) {
        const Values wanted = rows_in(to, expected, c.kv_heads, c.group, c.head_size);
        expect_close("out", forward(c, in, Dtype::kF32, from, to), wanted);
        expect_close("bf16 out", forward(c, in, Dtype::kBF16, from, to), wanted, kBf16Tolerance);
      }
  });
}

TEST(QkNormRope, backward_matches_finite_differences_of_float64) {
  for_each_case([](const Case& c) {
    Inputs in(c);
    const Values dout = random_values(c.rows() * c.width(), "dout");
    const Gradients actual = backward(c, in, dout, Dtype::kF32, QkvOrder::kGrouped, QkvOrder::kGrouped);
    const auto loss = [&] { return dot(dout, reference(c, in)); };
    expect_gradient("inp", actual.dinp, in.inp, loss, 2e-5);
    expect_gradient("query_weight", actual.dquery_weight, in.query_weight, loss, 2e-5);
    expect_gradient("key_weight", actual.dkey_weight, in.key_weight, loss, 2e-5);
    const Gradients bf16 = backward(c, in, dout, Dtype::kBF16, QkvOrder::kGrouped, QkvOrder::kGrouped);
    expect_close("bf16 dinp", bf16.dinp, actual.dinp, kBf16Tolerance);
  });
}

TEST(QkNormRope, orders_of_heads_and_memory_change_no_bit_of_a_gradient) {
  for_each_case([](const Case& c) {
    const Inputs in(c);
    const Values dout = random_values(c.rows() * c.width(), "dout");
    for (const Dtype dtype : {Dtype::kF32, Dtype::kBF16}) {
      const Gradients expected = backward(c, in, dout, dtype, QkvOrder::kGrouped, QkvOrder::kGrouped);
      for (const QkvOrder from : kOrders)
        for (const QkvOrder to : kOrders)
          for (const bool in_place : {false, true}) {
            if (in_place && from != to) continue;
            const Gradients actual = backward(c, in, dout, dtype, from, to, in_place);
            EXPECT_EQ(actual.dinp, rows_in(to, expected.dinp, c.kv_heads, c.group, c.head_size));
            EXPECT_EQ(actual.dquery_weight, expected.dquery_weight);
            EXPECT_EQ(actual.dkey_weight, expected.dkey_weight);
          }
    }
  });
}

}  // namespace
}  // namespace tri::test
