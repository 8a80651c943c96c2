// The ops of Muon on the CPU against float64.
#include "kernels/muon.h"

#include <gtest/gtest.h>

#include "io/base/error.h"
#include "kernels/core/dims.h"
#include "kernels/cpu/ops.h"
#include "kernels/moment_rounding.h"
#include "tests/kernels/op_test.h"

namespace tri::test {
namespace {

constexpr Dtype kTypes[] = {Dtype::kF32, Dtype::kBF16};

// A slice of three blocks: of tensor 0, padding, of tensor 1.
struct Slice {
  static constexpr int64_t n = 3 * kBlock;
  explicit Slice(Dtype kept, double scale = 0.5)
      : momentum(kept, {n}, random_values(n, "momentum")), grad_scale(Dtype::kF32, {1}, {scale}) {}

  MomentumUpdate args() const {
    return {.momentum = momentum,
            .grad = grad,
            .grad_scale = grad_scale,
            .block_tensor = block_tensor,
            .mu = 0.75f,
            .rounding = {.draws = draws, .first_block = 7, .step_key = 5}};
  }

  Buffer momentum, grad{Dtype::kF32, {n}, random_values(n, "grad")}, grad_scale;
  Buffer block_tensor{Dtype::kI32, {3}, {0, -1, 1}};
  Buffer draws{Dtype::kI32, {2, TensorDraws::kColumns}, {1, 2, 7, 0, 0, 0, 0, 0, 3, 4, 9, 0, 0, 0, 0, 0}};
};

TEST(MomentumUpdate, follows_its_float64_reference_and_skips_padding) {
  for (const Dtype kept : kTypes) {
    const Slice slice(kept);
    const Values m = slice.momentum.values(), g = slice.grad.values();
    check(slice.args());
    cpu::momentum_update(slice.args());
    Values expected_m = m, expected_u = g;
    for (size_t i = 0; i < m.size(); ++i) {
      if (i / kBlock == 1) continue;
      expected_m[i] = 0.75 * m[i] + 0.5 * g[i];
      expected_u[i] = 0.5 * g[i] + 0.75 * expected_m[i];  // uses the unrounded momentum
    }
    expect_close("u", slice.grad.values(), expected_u);
    expect_close("momentum", slice.momentum.values(), expected_m,
                 kept == Dtype::kF32 ? kFloatTolerance : kBf16Tolerance);
    for (size_t i = kBlock; i < 2 * kBlock; ++i) {
      EXPECT_EQ(slice.grad.values()[i], g[i]);
      EXPECT_EQ(slice.momentum.values()[i], m[i]);
    }
  }
}

TEST(MomentumUpdate, changes_nothing_if_gradients_are_not_finite) {
  for (const Dtype kept : kTypes) {
    const Slice slice(kept, NAN), before(kept, NAN);
    cpu::momentum_update(slice.args());
    EXPECT_TRUE(slice.momentum.same_bits(before.momentum) && slice.grad.same_bits(before.grad));
  }
}

// A momentum in bf16 is one of the two neighbours, and over many elements their mean is the number.
TEST(MomentumUpdate, rounds_a_bf16_momentum_stochastically) {
  const Slice slice(Dtype::kBF16), exact(Dtype::kF32);
  cpu::momentum_update(slice.args());
  cpu::momentum_update(exact.args());
  const Values rounded = slice.momentum.values(), expected = exact.momentum.values();
  double error = 0, away = 0;
  size_t nearest = 0, count = 0;
  for (size_t i = 0; i < rounded.size(); ++i) {
    if (i / kBlock == 1) continue;
    const double last = std::abs(expected[i]) * 0x1p-7;
    EXPECT_LE(std::abs(rounded[i] - expected[i]), last);
    error += std::copysign(1.0, expected[i]) * (rounded[i] - expected[i]) / last;  // truncation is a bias
    away += std::abs(rounded[i] - expected[i]) / last;
    nearest += rounded[i] == static_cast<double>(static_cast<float>(bf16(static_cast<float>(expected[i]))));
    ++count;
  }
  EXPECT_LT(std::abs(error), 0.3 * away + 5) << "biased";
  EXPECT_LT(nearest, count) << "rounded to nearest";
}

struct Part {
  MatrixRuns runs;
  int64_t count;
};
// Whole runs, parts that begin and end inside a run, one run, an offset before the slice.
const Part kParts[] = {{{.offset = 0, .run = 5, .stride = 9}, 20},
                       {{.offset = 3, .run = 4, .stride = 12, .first = 2}, 9},
                       {{.offset = 17, .run = 64, .stride = 64, .first = 7}, 50},
                       {{.offset = -30, .run = 8, .stride = 16, .first = 16}, 40},
                       {{.offset = 8, .run = 8, .stride = 16, .first = 8}, 32},
                       {{.offset = 0, .run = 1, .stride = 1}, 1}};

TEST(PackMatrix, takes_the_elements_of_the_part_and_unpack_returns_them) {
  constexpr int64_t n = kBlock;
  const Values inp = random_values(n, "inp"), master = random_values(n, "master");
  for (const Dtype dtype : kTypes)
    for (const Part& part : kParts) {
      Buffer packed(dtype, {part.count}), out(Dtype::kF32, {n}, inp);
      const Buffer from(Dtype::kF32, {n}, inp), weights(Dtype::kF32, {n}, master);
      run_checked(cpu::pack_matrix, {.out = packed, .inp = from, .runs = part.runs});
      Values expected, unpacked = inp;
      for (int64_t p = 0; p < part.count; ++p) {
        const int64_t place = part.runs.first + p;
        const auto at =
            static_cast<size_t>(part.runs.offset + place / part.runs.run * part.runs.stride + place % part.runs.run);
        expected.push_back(inp[at]);
        unpacked[at] = 0.5 * inp[at] + 0.25 * master[at];
      }
      EXPECT_EQ(packed.values(), expected);
      run_checked(cpu::unpack_matrix,
                  {.out = out, .inp = packed, .master = weights, .runs = part.runs, .scale = 0.5f, .decay = 0.25f});
      expect_close("unpacked", out.values(), unpacked);
    }
}

TEST(PackMatrix, refuses_a_part_outside_of_the_slice) {
  const Buffer packed(Dtype::kF32, {10}), slice(Dtype::kF32, {kBlock});
  const auto pack = [&](const MatrixRuns& runs) { check(PackMatrix{.out = packed, .inp = slice, .runs = runs}); };
  EXPECT_NO_THROW(pack({.offset = kBlock - 10, .run = 10, .stride = 10}));
  EXPECT_THROW(pack({.offset = kBlock - 9, .run = 10, .stride = 10}), Fatal);
  EXPECT_THROW(pack({.offset = -1, .run = 10, .stride = 10}), Fatal);
  EXPECT_THROW(pack({.offset = 0, .run = 10, .stride = 9}), Fatal);
}

TEST(ScaleMatrix, divides_by_the_norm) {
  for (const Dtype dtype : kTypes)
    for (const auto& [rows, columns] : {std::pair<int64_t, int64_t>{1, 1}, {3, 8}, {17, 40}, {64, 16}}) {
      const Values x = random_values(rows * columns, "x");
      const Buffer inp(dtype, {rows, columns}, x);
      Buffer out(dtype, {rows, columns}), sumsq(Dtype::kF32, {1});
      cpu::matrix_sumsq({.sumsq = sumsq, .inp = Tensor(inp).flat()});
      expect_close("sumsq", sumsq.values(), {dot(x, x)});
      run_checked(cpu::scale_matrix, {.out = out, .inp = inp, .sumsq = sumsq, .eps = 0.5f});
      Values expected = x;
      for (double& value : expected) value /= std::sqrt(dot(x, x)) + 0.5;
      expect_close("out", out.values(), expected, dtype == Dtype::kF32 ? kFloatTolerance : kBf16Tolerance);
    }
}

TEST(ScaleMatrix, joins_and_divides_shards_of_columns) {
  constexpr int64_t rows = 3, columns = 8, shards = 2, width = columns / shards;
  const Values x = random_values(rows * columns, "x");
  Values sharded;
  for (int64_t s = 0; s < shards; ++s)
    for (int64_t r = 0; r < rows; ++r)
      for (int64_t c = 0; c < width; ++c) sharded.push_back(x[static_cast<size_t>(r * columns + s * width + c)]);
  for (const Dtype dtype : kTypes) {
    const Buffer in_shards(dtype, {rows, columns}, sharded);
    Buffer whole(dtype, {rows, columns}), again(dtype, {rows, columns});
    cpu::scale_matrix({.out = whole, .inp = in_shards, .inp_shards = shards});
    EXPECT_EQ(whole.values(), x);
    cpu::scale_matrix({.out = again, .inp = whole, .out_shards = shards});
    EXPECT_EQ(again.values(), sharded);
  }
}

}  // namespace
}  // namespace tri::test
