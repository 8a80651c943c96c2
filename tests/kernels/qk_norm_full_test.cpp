// The ops of QK-norm over the full width against float64 and its finite differences, over odd and large shapes, on one
// rank and with the heads divided over ranks.
#include "kernels/qk_norm_full.h"

#include <gtest/gtest.h>

#include <complex>

#include "io/base/error.h"
#include "kernels/cpu/ops.h"
#include "kernels/rope.h"
#include "tests/kernels/qkv_rows.h"

namespace tri::test {
namespace {

constexpr double kEps = 1e-5;
// Cosines and sines that are multiplied by an attention factor: the backward pass is no inverse rotation.
constexpr RopeAngles kAngles{
    .theta = 10000, .scaling = RopeScaling::kYarn, .factor = 4, .original_seq_len = 64, .beta_fast = 4};

struct Case {
  int64_t batch, seq_len;
  int kv_heads, group, head_size;
  int ranks = 1;

  int64_t rows() const { return batch * seq_len; }
  int64_t width() const { return int64_t{kv_heads} * (group + 2) * head_size; }
  int64_t query_width() const { return int64_t{kv_heads} * group * head_size; }
  int64_t key_width() const { return int64_t{kv_heads} * head_size; }
  int local_heads() const { return kv_heads / ranks; }
};

template <class Check>
void for_each_case(Check check) {
  for (const Case& c : {Case{1, 1, 1, 1, 2}, Case{3, 5, 1, 2, 4}, Case{1, 17, 3, 1, 6}, Case{2, 24, 2, 4, 64, 2},
                        Case{1, 33, 4, 3, 16, 4}, Case{3, 11, 2, 1, 80}}) {
    SCOPED_TRACE(fmt::format("B {} T {} NKV {} G {} HS {}, {} ranks", c.batch, c.seq_len, c.kv_heads, c.group,
                             c.head_size, c.ranks));
    check(c);
  }
}

struct Inputs {
  Values inp, query_weight, key_weight;
  explicit Inputs(const Case& c)
      : inp(random_values(c.rows() * c.width(), "inp")),
        query_weight(random_values(c.query_width(), "query_weight")),
        key_weight(random_values(c.key_width(), "key_weight")) {}
};

// Implements the definition in grouped order.
Values reference(const Case& c, const Inputs& in) {
  Values rows = in.inp;
  const int half = c.head_size / 2;
  const std::vector<double> frequencies = rope_frequencies(kAngles, c.head_size);
  const double scale = rope_attention_factor(kAngles);
  const auto for_each_head = [&](auto&& visit) {  // visit(is_key, head of its kind, offset in a row)
    for (int kv = 0; kv < c.kv_heads; ++kv)
      for (int slot = 0; slot <= c.group; ++slot) {
        const bool is_key = slot == c.group;
        visit(is_key, is_key ? kv : kv * c.group + slot, (kv * (c.group + 2) + slot) * c.head_size);
      }
  };
  for (int64_t r = 0; r < c.rows(); ++r) {
    double* row = &rows[static_cast<size_t>(r * c.width())];
    double squares[2] = {};
    for_each_head([&](bool is_key, int, int at) {
      for (int i = 0; i < c.head_size; ++i) squares[is_key] += row[at + i] * row[at + i];
    });
    const double rstd[2] = {1 / std::sqrt(squares[0] / static_cast<double>(c.query_width()) + kEps),
                            1 / std::sqrt(squares[1] / static_cast<double>(c.key_width()) + kEps)};
    for_each_head([&](bool is_key, int head, int at) {
      const double* weight = &(is_key ? in.key_weight : in.query_weight)[static_cast<size_t>(head * c.head_size)];
      for (int i = 0; i < half; ++i) {
        const double angle = static_cast<double>(r % c.seq_len) * frequencies[static_cast<size_t>(i)];
        const auto turned = rstd[is_key] *
                            std::complex(row[at + i] * weight[i], row[at + half + i] * weight[half + i]) *
                            std::polar(scale, angle);
        row[at + i] = turned.real(), row[at + half + i] = turned.imag();
      }
    });
  }
  return rows;
}

// Rank `rank`'s columns of `values` (rows, columns).
Values columns_of(const Values& values, int64_t rows, int rank, int ranks) {
  const int64_t columns = static_cast<int64_t>(values.size()) / rows, local = columns / ranks;
  Values share;
  for (int64_t r = 0; r < rows; ++r)
    for (int64_t c = 0; c < local; ++c) share.push_back(values[static_cast<size_t>(r * columns + rank * local + c)]);
  return share;
}

// One rank's operands; `order`: of inp.
struct Operands {
  Buffer table, inp, query_weight, key_weight;
  Operands(const Case& c, const Inputs& in, Dtype dtype, QkvOrder order, int rank)
      : table(Dtype::kF32, {c.seq_len, c.head_size / 2, 2}),
        inp(dtype, {c.rows(), c.width() / c.ranks},
            rows_in(order, columns_of(in.inp, c.rows(), rank, c.ranks), c.local_heads(), c.group, c.head_size)),
        query_weight(dtype, {c.query_width() / c.ranks}, columns_of(in.query_weight, 1, rank, c.ranks)),
        key_weight(dtype, {c.key_width() / c.ranks}, columns_of(in.key_weight, 1, rank, c.ranks)) {
    fill_rope_table(Tensor(table).as<float>(), static_cast<int>(c.seq_len), c.head_size, kAngles);
  }
};

Buffer sums_over_ranks(const Case& c, const std::vector<Buffer>& of_ranks) {
  Values sums(static_cast<size_t>(2 * c.rows()));
  for (const Buffer& sum : of_ranks)
    for (size_t i = 0; i < sums.size(); ++i) sums[i] += sum.values()[i];
  return Buffer(Dtype::kF32, {c.rows(), 2}, sums);
}

struct Results {
  std::vector<Values> out, dinp, dquery_weight, dkey_weight;  // [rank]; rows in the order `from`
};

// Forward from order `from` to `to`, then backward from `to` to `from`. The weights' gradients begin at 1, because they
// are added to.
Results run(const Case& c, const Inputs& in, const Values& dout, Dtype dtype, QkvOrder from, QkvOrder to,
            bool in_place = false) {
  std::vector<Operands> on;
  std::vector<Buffer> squares, products, rstd;
  Results results;
  for (int rank = 0; rank < c.ranks; ++rank) {
    on.emplace_back(c, in, dtype, from, rank);
    squares.emplace_back(Dtype::kF32, std::initializer_list<int64_t>{c.rows(), 2});
    run_checked(cpu::qk_norm_squares, {.sums = squares.back(),
                                       .inp = on.back().inp,
                                       .num_kv_heads = c.local_heads(),
                                       .group = c.group,
                                       .order = from});
  }
  const Buffer all_squares = sums_over_ranks(c, squares);
  std::vector<Buffer> gradients;
  for (int rank = 0; rank < c.ranks; ++rank) {
    const Operands& of = on[static_cast<size_t>(rank)];
    const Buffer out(dtype, {c.rows(), c.width() / c.ranks});
    rstd.emplace_back(Dtype::kF32, std::initializer_list<int64_t>{c.rows(), 2});
    run_checked(cpu::qk_norm_full_forward, {.eps = static_cast<float>(kEps),
                                            .query_width = c.query_width(),
                                            .key_width = c.key_width(),
                                            .out = out,
                                            .rstd = rstd.back(),
                                            .squares = all_squares,
                                            .inp = of.inp,
                                            .query_weight = of.query_weight,
                                            .key_weight = of.key_weight,
                                            .table = of.table,
                                            .num_kv_heads = c.local_heads(),
                                            .group = c.group,
                                            .out_order = to,
                                            .inp_order = from});
    results.out.push_back(out.values());
    gradients.emplace_back(
        dtype, std::initializer_list<int64_t>{c.rows(), c.width() / c.ranks},
        rows_in(to, columns_of(dout, c.rows(), rank, c.ranks), c.local_heads(), c.group, c.head_size));
    products.emplace_back(Dtype::kF32, std::initializer_list<int64_t>{c.rows(), 2});
    run_checked(cpu::qk_norm_products, {.sums = products.back(),
                                        .dout = gradients.back(),
                                        .inp = of.inp,
                                        .query_weight = of.query_weight,
                                        .key_weight = of.key_weight,
                                        .table = of.table,
                                        .num_kv_heads = c.local_heads(),
                                        .group = c.group,
                                        .dout_order = to,
                                        .inp_order = from});
  }
  const Buffer all_products = sums_over_ranks(c, products);
  for (int rank = 0; rank < c.ranks; ++rank) {
    const auto i = static_cast<size_t>(rank);
    const Buffer other(dtype, {c.rows(), c.width() / c.ranks}), dinp = in_place ? gradients[i] : other;
    const auto ones = [&](int64_t width) {
      return Buffer(Dtype::kF32, {width}, Values(static_cast<size_t>(width), 1.0));
    };
    const Buffer dquery = ones(c.query_width() / c.ranks), dkey = ones(c.key_width() / c.ranks);
    run_checked(cpu::qk_norm_full_backward, {.query_width = c.query_width(),
                                             .key_width = c.key_width(),
                                             .dinp = dinp,
                                             .dquery_weight = dquery,
                                             .dkey_weight = dkey,
                                             .rstd = rstd[i],
                                             .products = all_products,
                                             .dout = in_place ? dinp : gradients[i],
                                             .inp = on[i].inp,
                                             .query_weight = on[i].query_weight,
                                             .key_weight = on[i].key_weight,
                                             .table = on[i].table,
                                             .num_kv_heads = c.local_heads(),
                                             .group = c.group,
                                             .dout_order = to,
                                             .dinp_order = from});
    results.dinp.push_back(dinp.values());
    results.dquery_weight.push_back(minus(dquery.values(), Values(dquery.values().size(), 1.0)));
    results.dkey_weight.push_back(minus(dkey.values(), Values(dkey.values().size(), 1.0)));
  }
  return results;
}

// The inverse of columns_of.
Values joined(const std::vector<Values>& shares, int64_t rows) {
  Values all;
  for (int64_t r = 0; r < rows; ++r)
    for (const Values& share : shares) {
      const auto local = static_cast<int64_t>(share.size()) / rows;
      all.insert(all.end(), share.begin() + r * local, share.begin() + (r + 1) * local);
    }
  return all;
}

TEST(QkNormFull, forward_matches_float64) {
  for_each_case([](const Case& c) {
    const Inputs in(c);
    const Values dout = random_values(c.rows() * c.width(), "dout"), expected = reference(c, in);
    for (const QkvOrder from : kOrders)
      for (const QkvOrder to : kOrders)
        for (const auto& [dtype, tolerance] :
             {std::pair{Dtype::kF32, 1e-5}, std::pair{Dtype::kBF16, double{kBf16Tolerance}}}) {
          const Results actual = run(c, in, dout, dtype, from, to);
          for (int rank = 0; rank < c.ranks; ++rank)
            expect_close(
                "out", actual.out[static_cast<size_t>(rank)],
                rows_in(to, columns_of(expected, c.rows(), rank, c.ranks), c.local_heads(), c.group, c.head_size),
                tolerance);
        }
  });
}

TEST(QkNormFull, backward_matches_finite_differences_of_float64) {
  for_each_case([](const Case& c) {
    Inputs in(c);
    const Values dout = random_values(c.rows() * c.width(), "dout");
    const Results actual = run(c, in, dout, Dtype::kF32, QkvOrder::kGrouped, QkvOrder::kGrouped);
    const auto loss = [&] { return dot(dout, reference(c, in)); };
    const Values dinp = joined(actual.dinp, c.rows());
    expect_gradient("inp", dinp, in.inp, loss, 2e-5);
    expect_gradient("query_weight", joined(actual.dquery_weight, 1), in.query_weight, loss, 2e-5);
    expect_gradient("key_weight", joined(actual.dkey_weight, 1), in.key_weight, loss, 2e-5);
    const Results bf16 = run(c, in, dout, Dtype::kBF16, QkvOrder::kGrouped, QkvOrder::kGrouped);
    expect_close("bf16 dinp", joined(bf16.dinp, c.rows()), dinp, kBf16Tolerance);
  });
}

TEST(QkNormFull, orders_of_heads_and_memory_change_no_bit_of_a_gradient) {
  for_each_case([](const Case& c) {
    const Inputs in(c);
    const Values dout = random_values(c.rows() * c.width(), "dout");
    const Results expected = run(c, in, dout, Dtype::kF32, QkvOrder::kGrouped, QkvOrder::kGrouped);
    for (const QkvOrder from : kOrders)
      for (const QkvOrder to : kOrders)
        for (const bool in_place : {false, true}) {
          if (in_place && from != to) continue;
          const Results actual = run(c, in, dout, Dtype::kF32, from, to, in_place);
          for (size_t rank = 0; rank < actual.dinp.size(); ++rank)
            EXPECT_EQ(actual.dinp[rank], rows_in(from, expected.dinp[rank], c.local_heads(), c.group, c.head_size));
          EXPECT_EQ(actual.dquery_weight, expected.dquery_weight);
          EXPECT_EQ(actual.dkey_weight, expected.dkey_weight);
        }
  });
}

TEST(QkNormFull, check_refuses_what_does_not_fit) {
  const Case c{1, 5, 2, 1, 4};
  const Inputs in(c);
  const Operands on(c, in, Dtype::kF32, QkvOrder::kGrouped, 0);
  const Buffer out(Dtype::kF32, {c.rows(), c.width()}), sums(Dtype::kF32, {c.rows(), 2});
  QkNormFullForward args{.query_width = c.query_width(),
                         .key_width = c.key_width(),
                         .out = out,
                         .rstd = sums,
                         .squares = sums,
                         .inp = on.inp,
                         .query_weight = on.query_weight,
                         .key_weight = on.key_weight,
                         .table = on.table,
                         .num_kv_heads = c.kv_heads,
                         .group = c.group};
  EXPECT_NO_THROW(check(args));
  args.out = on.inp;
  EXPECT_THROW(check(args), Fatal);
  args.out = out;
  args.key_width = c.key_width() - 1;
  EXPECT_THROW(check(args), Fatal);
  args.key_width = c.key_width();
  args.query_weight = out;
  EXPECT_THROW(check(args), Fatal);
}

}  // namespace
}  // namespace tri::test
