// Moments in bf16: the probabilities of rounding, and the CPU updates that preserve them.
#include "kernels/moment_rounding.h"

#include <bit>
#include <cmath>

#include "kernels/core/dims.h"
#include "kernels/cpu/ops.h"
#include "tests/kernels/op_test.h"

namespace tri::test {
namespace {

uint32_t bits_of(float value) { return std::bit_cast<uint32_t>(value); }
float value_of(uint32_t upper) { return std::bit_cast<float>(upper << 16); }

// Uses every value of the sixteen random bits once: as many round up as there are steps above the lower neighbour.
TEST(MomentRounding, odds_are_exact) {
  for (const float value : {1.0f, 1.0001f, -3.14159265f, 1e-20f, -1e-40f, 0.0f, 255.99f, 1.99999988f}) {
    const uint32_t bits = bits_of(value), below = bits >> 16;
    uint32_t up = 0;
    for (uint32_t random = 0; random < 1 << 16; ++random) {
      const uint32_t rounded = round_stochastically(value, random);
      ASSERT_TRUE(rounded == below || rounded == below + 1) << value;
      up += rounded == below + 1;
    }
    EXPECT_EQ(up, bits & 0xFFFF) << value;
  }
}

TEST(MomentRounding, infinity_and_nan_stay) {
  for (const uint32_t random : {0u, 1u, 0xFFFFu, 0xABCDEF12u}) {
    EXPECT_EQ(value_of(round_stochastically(INFINITY, random)), INFINITY);
    EXPECT_EQ(value_of(round_stochastically(-INFINITY, random)), -INFINITY);
    for (const uint32_t nan : {0x7F800001u, 0x7FC00000u, 0xFFFFFFFFu, 0xFF80FFFFu})
      EXPECT_TRUE(std::isnan(value_of(round_stochastically(std::bit_cast<float>(nan), random)))) << nan;
  }
}

TEST(MomentRounding, many_draws_average_to_the_number) {
  constexpr int kQuads = 1 << 16;
  const float value = 1.0f + 0.3f / 128;  // three tenths of the way up
  double exp_avg = 0, exp_avg_sq = 0, both = 0;
  for (int quad = 0; quad < kQuads; ++quad) {
    const MomentDraw draw = draw_of(derive_key(1, "tensor"), derive_key(2, "step"), quad);
    for (int i = 0; i < 4; ++i) {
      const bool m_up = value_of(round_stochastically(value, draw.exp_avg(i))) > value;
      const bool v_up = value_of(round_stochastically(value, draw.exp_avg_sq(i))) > value;
      exp_avg += m_up, exp_avg_sq += v_up, both += m_up && v_up;
    }
  }
  constexpr double kDraws = 4.0 * kQuads, kFiveSigma = 5 * 0.46;
  const double odds = (value - 1.0) * 128;
  EXPECT_NEAR(exp_avg / kDraws, odds, kFiveSigma / std::sqrt(kDraws));
  EXPECT_NEAR(exp_avg_sq / kDraws, odds, kFiveSigma / std::sqrt(kDraws));
  EXPECT_NEAR(both / kDraws, odds * odds, kFiveSigma / std::sqrt(kDraws)) << "the two moments' draws hang together";
}

// Quads of a share of columns (rows of 6 quads, of which rank 1 of 2 has the last three) in the global tensor.
TEST(MomentRounding, a_share_draws_what_the_whole_tensor_does) {
  const TensorDraws share{.key_low = 1, .key_high = 2, .first_block = 0, .run = 3, .stride = 6, .offset = 3};
  const int64_t expected[] = {3, 4, 5, 9, 10, 11, 15};
  for (uint32_t quad = 0; quad < std::size(expected); ++quad) EXPECT_EQ(share.global_quad(quad), expected[quad]);
  EXPECT_EQ(share.key(), 0x200000001u);
  EXPECT_EQ((TensorDraws{.first_block = 3}.global_quad(77)), 77) << "the share is the whole tensor";
}

// A slice with `blocks` blocks of one tensor, starting at its block `first`; another tensor precedes it.
struct Slice {
  Slice(Dtype kept, int64_t blocks, float exp_avg, float exp_avg_sq)
      : n(blocks * kBlock),
        owners(Dtype::kI32, {blocks}, Values(static_cast<size_t>(blocks), 1.0)),
        w(Dtype::kF32, {n}, random_values(n, "w")),
        grad(Dtype::kF32, {n}, random_values(n, "grad", 0.1)),
        m(kept, {n}, Values(static_cast<size_t>(n), exp_avg)),
        v(kept, {n}, Values(static_cast<size_t>(n), exp_avg_sq)) {}

  Moments moments(int step, int64_t first, int64_t count) const {
    const auto part = [&](const Buffer& buffer) { return Tensor(buffer).flat(first * kBlock, count * kBlock); };
    return {.master = part(w),
            .exp_avg = part(m),
            .exp_avg_sq = part(v),
            .grad = part(grad),
            .grad_scale = scale,
            .block_tensor = Tensor(owners).flat(first, count),
            .decay = decay,
            .beta1 = 0.9f,
            .beta2 = beta2,
            .eps = 1e-8f,
            .rounding = {.draws = draws, .first_block = 5 + first, .step_key = derive_key(3, fmt::format("{}", step))}};
  }
  void step(int number, int64_t first, int64_t count) const {
    run_checked(cpu::adamw_update, {.moments = moments(number, first, count), .param = {}, .lr = 0.01f});
  }

  int64_t n;
  float beta2 = 0.95f;
  Buffer owners, w, grad, m, v;
  Buffer scale{Dtype::kF32, {1}, {1.0}}, decay{Dtype::kF32, {2}, {0.1, 0.1}};
  Buffer draws{Dtype::kI32, {2, TensorDraws::kColumns}, {9, 9, 0, 0, 0, 0, 0, 0, 7, 8, 5, 0, 0, 0, 0, 0}};
};

TEST(MomentRounding, a_step_takes_the_unrounded_moments_and_keeps_a_neighbour_of_them) {
  const Slice exact(Dtype::kF32, 9, 0.5f, 0.25f), rounded(Dtype::kBF16, 9, 0.5f, 0.25f);
  exact.step(1, 0, 9);
  rounded.step(1, 0, 9);
  EXPECT_TRUE(rounded.w.same_bits(exact.w)) << "from the same moments";
  const std::pair<const Buffer*, const Buffer*> pairs[] = {{&exact.m, &rounded.m}, {&exact.v, &rounded.v}};
  for (const auto& [of_exact, of_rounded] : pairs) {
    const Values x = of_exact->values(), y = of_rounded->values();
    int above = 0, below = 0;
    for (size_t i = 0; i < x.size(); ++i) {
      const auto bits = static_cast<int64_t>(bits_of(static_cast<float>(x[i])));
      const auto kept = static_cast<int64_t>(bits_of(static_cast<float>(y[i])));
      ASSERT_LT(std::abs(kept - bits), 1 << 16) << x[i] << " is kept as " << y[i];
      above += kept > bits, below += kept < bits;
    }
    EXPECT_GT(above, 400);  // of 1152
    EXPECT_GT(below, 400);
  }
}

TEST(MomentRounding, slices_equal_one_call_bit_for_bit_and_steps_differ) {
  const Slice whole(Dtype::kBF16, 9, 0, 0), sliced(Dtype::kBF16, 9, 0, 0), other(Dtype::kBF16, 9, 0, 0);
  for (int number = 1; number <= 3; ++number) {
    whole.step(number, 0, 9);
    other.step(number + 1, 0, 9);
    for (const auto& [first, count] : {std::pair{0, 1}, {1, 4}, {5, 4}}) sliced.step(number, first, count);
  }
  EXPECT_TRUE(sliced.m.same_bits(whole.m) && sliced.v.same_bits(whole.v) && sliced.w.same_bits(whole.w));
  EXPECT_FALSE(other.m.same_bits(whole.m)) << "another step draws the same";
}

// beta2 = 0.999 removes a quarter of a last place from v = 1: with rounding to nearest v would never fall.
TEST(MomentRounding, what_is_less_than_half_a_last_place_is_not_lost) {
  Slice slice(Dtype::kBF16, 32, 0, 1);
  slice.beta2 = 0.999f;
  slice.grad = Buffer(Dtype::kF32, {slice.n}, Values(static_cast<size_t>(slice.n), 0.0));
  constexpr int kSteps = 500;
  for (int number = 1; number <= kSteps; ++number) slice.step(number, 0, 32);
  double mean = 0;
  for (const double v : slice.v.values()) mean += v / static_cast<double>(slice.n);
  EXPECT_NEAR(mean, std::pow(0.999, kSteps), 0.004);  // 0.606; the spread of an element is 0.03
}

TEST(MomentRounding, lamb_keeps_what_adamw_keeps) {
  const Slice adamw(Dtype::kBF16, 3, 0.5f, 0.25f), lamb(Dtype::kBF16, 3, 0.5f, 0.25f);
  adamw.step(1, 0, 3);
  run_checked(cpu::lamb_direction, {.moments = lamb.moments(1, 0, 3)});
  EXPECT_TRUE(lamb.m.same_bits(adamw.m) && lamb.v.same_bits(adamw.v));
}

TEST(MomentRounding, gradients_that_are_not_finite_change_nothing) {
  Slice slice(Dtype::kBF16, 3, 0.5f, 0.25f);
  slice.step(1, 0, 3);  // moments with many values
  const Values w = slice.w.values(), m = slice.m.values(), v = slice.v.values(), grad = slice.grad.values();
  slice.scale = Buffer(Dtype::kF32, {1}, {NAN});
  slice.step(2, 0, 3);
  cpu::lamb_direction({.moments = slice.moments(2, 0, 3)});
  EXPECT_EQ(slice.w.values(), w);
  EXPECT_EQ(slice.m.values(), m);
  EXPECT_EQ(slice.v.values(), v);
  EXPECT_EQ(slice.grad.values(), grad);
}

TEST(MomentRounding, check_refuses_wrong_operands) {
  const Slice slice(Dtype::kBF16, 2, 0, 0), plain(Dtype::kF32, 2, 0, 0);
  const auto refuses = [&](auto change) {
    LambDirection args{.moments = slice.moments(1, 0, 2)};
    ASSERT_NO_THROW(check(args));
    change(args.moments);
    EXPECT_THROW(check(args), Fatal);
  };
  refuses([](Moments& m) { m.rounding.draws = Tensor(); });
  refuses([](Moments& m) { m.rounding.draws.shape[0] = 1; });
  refuses([](Moments& m) { m.rounding.first_block = -1; });
  refuses([&](Moments& m) { m.exp_avg_sq = plain.v; });
  refuses([](Moments& m) { m.exp_avg.dtype = m.exp_avg_sq.dtype = Dtype::kI32; });
}

}  // namespace
}  // namespace tri::test
