// AdamW, LAMB and the norms on the CPU against float64 optimizers that use tensors, not blocks.
#include <algorithm>
#include <cmath>
#include <numeric>

#include "kernels/core/dims.h"
#include "kernels/cpu/ops.h"
#include "tests/kernels/op_test.h"

namespace tri::test {
namespace {

constexpr float kBeta1 = 0.9f, kBeta2 = 0.95f, kEps = 1e-8f, kLr = 0.01f, kGradScale = 0.5f;
constexpr int kSteps = 5;

// A flat buffer of four tensors of 3, 1, 8 and 2 blocks, with padding between and after them.
const std::vector<int> kOwners = {0, 0, 0, 1, -1, 2, 2, 2, 2, 2, 2, 2, 2, -1, 3, 3, -1, -1};
const Values kDecay = {0.1, -1.0, 0.01, 0.0};  // below 0: neither decay nor trust ratio
const int64_t kBlocks = static_cast<int64_t>(kOwners.size()), kNumel = kBlocks * kBlock;
constexpr int64_t kTensors = 4, kSlots = 6;

int owner_of(int64_t element) { return kOwners[element / kBlock]; }

// Returns `values` with NaN in padding, which no op may read.
Values poison_padding(Values values) {
  for (int64_t i = 0; i < kNumel; ++i) {
    if (owner_of(i) < 0) values[i] = NAN;
  }
  return values;
}
// Returns `values` with zeros in padding, for comparisons.
Values clear_padding(Values values) {
  for (int64_t i = 0; i < kNumel; ++i) {
    if (owner_of(i) < 0) values[i] = 0;
  }
  return values;
}
bool padding_is_nan(const Values& values) {
  for (int64_t i = 0; i < kNumel; ++i) {
    if (owner_of(i) < 0 && !std::isnan(values[i])) return false;
  }
  return true;
}

Values initial_weights() { return poison_padding(random_values(kNumel, "weights", 0.5)); }
Values grad_of(int step) { return poison_padding(random_values(kNumel, fmt::format("grad {}", step), 0.1)); }

enum class Rule { kAdamw, kLamb };

// The optimizers as defined in their papers.
struct Reference {
  Values w = initial_weights(), m = Values(kNumel, 0.0), v = Values(kNumel, 0.0);

  void step(Rule rule, int number) {
    const Values grad = grad_of(number);
    Values direction(kNumel);
    for (int64_t i = 0; i < kNumel; ++i) {
      if (owner_of(i) < 0) continue;
      const double g = grad[i] * kGradScale;
      m[i] = kBeta1 * m[i] + (1 - double{kBeta1}) * g;
      v[i] = kBeta2 * v[i] + (1 - double{kBeta2}) * g * g;
      const double m_hat = m[i] / (1 - std::pow(kBeta1, number)), v_hat = v[i] / (1 - std::pow(kBeta2, number));
      direction[i] = m_hat / (std::sqrt(v_hat) + kEps) + float(std::max(kDecay[owner_of(i)], 0.0)) * w[i];
    }
    Values weight_sumsq(kTensors), direction_sumsq(kTensors);
    for (int64_t i = 0; i < kNumel; ++i) {
      if (owner_of(i) < 0) continue;
      weight_sumsq[owner_of(i)] += w[i] * w[i];
      direction_sumsq[owner_of(i)] += direction[i] * direction[i];
    }
    for (int64_t i = 0; i < kNumel; ++i) {
      const int tensor = owner_of(i);
      if (tensor < 0) continue;
      const bool adapts = rule == Rule::kLamb && kDecay[tensor] >= 0;
      w[i] -= kLr * (adapts ? std::sqrt(weight_sumsq[tensor] / direction_sumsq[tensor]) : 1) * direction[i];
    }
  }
};

// A flat buffer for the ops, each called once per slice.
struct State {
  Buffer owners{Dtype::kI32, {kBlocks}, Values(kOwners.begin(), kOwners.end())};
  Buffer decay{Dtype::kF32, {kTensors}, kDecay};
  Buffer grad_scale{Dtype::kF32, {1}, {kGradScale}};
  Buffer w{Dtype::kF32, {kNumel}, initial_weights()};
  Buffer m{Dtype::kF32, {kNumel}, poison_padding(Values(kNumel, 0.0))};
  Buffer v{Dtype::kF32, {kNumel}, poison_padding(Values(kNumel, 0.0))};
  Buffer grad{Dtype::kF32, {kNumel}};
  Buffer param{Dtype::kBF16, {kNumel}};
  bool writes_quantized = false;  // instead of param
  Buffer quantized{Dtype::kE4M3, {kNumel}};
  Buffer slot{Dtype::kI32, {kTensors}, {2, 5, 0, 3}};
  Buffer scale{Dtype::kF32, {kSlots}, {64, NAN, 256, 4096, NAN, 128}};  // the weights of one slot saturate
  Buffer amax{Dtype::kF32, {kSlots}, Values(kSlots, 0.0)};
  Buffer counts{Dtype::kI64, {kSlots, kNumFp8Counts}, Values(kSlots* kNumFp8Counts, 0.0)};
  Buffer weight_sumsq, direction_sumsq;

  Tensor param_of(int64_t first, int64_t count) const {
    return writes_quantized ? Tensor() : Tensor(param).flat(first, count);
  }
  Fp8SliceWeights quantized_of(int64_t first, int64_t count) const {
    if (!writes_quantized) return {};
    return {.out = Tensor(quantized).flat(first, count), .slot = slot, .scale = scale, .amax = amax, .counts = counts};
  }
  // Expects the quantized values, amax and counts that fp8_cast_slice computes from the current weights.
  void expect_quantized_weights() const {
    State cast;
    cast.writes_quantized = true;
    run_checked(cpu::fp8_cast_slice, {.quantized = cast.quantized_of(0, kNumel), .inp = w, .block_tensor = owners});
    EXPECT_TRUE(quantized.same_bits(cast.quantized));
    EXPECT_TRUE(amax.same_bits(cast.amax));
    EXPECT_TRUE(counts.same_bits(cast.counts));
  }

  Tensor owners_of(int64_t first, int64_t count) const { return Tensor(owners).flat(first / kBlock, count / kBlock); }
  Moments moments(int number, int64_t first, int64_t count) const {
    const auto slice = [&](const Buffer& buffer) { return Tensor(buffer).flat(first, count); };
    return {.master = slice(w),
            .exp_avg = slice(m),
            .exp_avg_sq = slice(v),
            .grad = slice(grad),
            .grad_scale = grad_scale,
            .block_tensor = owners_of(first, count),
            .decay = decay,
            .beta1 = kBeta1,
            .beta2 = kBeta2,
            .eps = kEps,
            .bias_correction1 = static_cast<float>(1 - std::pow(double{kBeta1}, number)),
            .bias_correction2 = static_cast<float>(1 - std::pow(double{kBeta2}, number))};
  }
  AdamwUpdate adamw(int number, int64_t first, int64_t count) const {
    return {.moments = moments(number, first, count),
            .param = param_of(first, count),
            .quantized = quantized_of(first, count),
            .lr = kLr};
  }
  void sumsq(const Buffer& out, const Buffer& inp, int64_t first, int64_t count) const {
    run_checked(cpu::tensor_sumsq,
                {.sumsq = out, .inp = Tensor(inp).flat(first, count), .block_tensor = owners_of(first, count)});
  }
  LambApply lamb_apply(int64_t first, int64_t count) const {
    return {.master = Tensor(w).flat(first, count),
            .param = param_of(first, count),
            .quantized = quantized_of(first, count),
            .direction = Tensor(grad).flat(first, count),
            .weight_sumsq = weight_sumsq,
            .direction_sumsq = direction_sumsq,
            .grad_scale = grad_scale,
            .block_tensor = owners_of(first, count),
            .decay = decay,
            .lr = kLr};
  }

  // Runs step `number` with the buffer divided at `cuts` (elements, ascending, from 0 to kNumel).
  void step(Rule rule, int number, const std::vector<int64_t>& cuts = {0, kNumel}) {
    step(rule, number, cuts, grad_of(number));
  }
  void step(Rule rule, int number, const std::vector<int64_t>& cuts, const Values& grad_values) {
    grad = Buffer(Dtype::kF32, {kNumel}, grad_values);
    param = Buffer(Dtype::kBF16, {kNumel});
    quantized = Buffer(Dtype::kE4M3, {kNumel});
    amax = Buffer(Dtype::kF32, {kSlots}, Values(kSlots, 0.0));
    counts = Buffer(Dtype::kI64, {kSlots, kNumFp8Counts}, Values(kSlots * kNumFp8Counts, 0.0));
    const auto for_each_slice = [&](auto f) {
      for (size_t i = 0; i + 1 < cuts.size(); ++i) f(cuts[i], cuts[i + 1] - cuts[i]);
    };
    if (rule == Rule::kAdamw) {
      for_each_slice([&](int64_t first, int64_t count) {
        const AdamwUpdate args = adamw(number, first, count);
        run_checked(cpu::adamw_update, args);
      });
      return;
    }
    // Norms over the whole buffer, like the sum over ranks: another test covers how slices round them.
    weight_sumsq = direction_sumsq = Buffer(Dtype::kF32, {kTensors}, Values(kTensors, 0.0));
    for_each_slice([&](int64_t first, int64_t count) {
      run_checked(cpu::lamb_direction, {.moments = moments(number, first, count)});
    });
    sumsq(weight_sumsq, w, 0, kNumel);
    sumsq(direction_sumsq, grad, 0, kNumel);
    for_each_slice([&](int64_t first, int64_t count) {
      const LambApply args = lamb_apply(first, count);
      run_checked(cpu::lamb_apply, args);
    });
  }

  bool same_bits(const State& other) const {
    return w.same_bits(other.w) && m.same_bits(other.m) && v.same_bits(other.v) && grad.same_bits(other.grad) &&
           param.same_bits(other.param);
  }
};

void expect_follows_float64(Rule rule) {
  Reference reference;
  State state;
  for (int number = 1; number <= kSteps; ++number) {
    SCOPED_TRACE(fmt::format("step {}", number));
    reference.step(rule, number);
    state.step(rule, number);
    expect_close("w", clear_padding(state.w.values()), clear_padding(reference.w), 1e-6);
    expect_close("m", clear_padding(state.m.values()), clear_padding(reference.m), 1e-6);
    expect_close("v", clear_padding(state.v.values()), clear_padding(reference.v), 1e-6);
    for (const Buffer* buffer : {&state.w, &state.m, &state.v, &state.grad, &state.param}) {
      EXPECT_TRUE(padding_is_nan(buffer->values()));
    }
    if (::testing::Test::HasFailure()) return;
  }
}

TEST(OptimizerOps, adamw_follows_its_float64_reference) { expect_follows_float64(Rule::kAdamw); }

TEST(OptimizerOps, lamb_follows_its_float64_reference) { expect_follows_float64(Rule::kLamb); }

TEST(OptimizerOps, bf16_param_is_the_rounded_master) {
  for (const Rule rule : {Rule::kAdamw, Rule::kLamb}) {
    State state;
    state.step(rule, 1);
    EXPECT_TRUE(state.param.same_bits(Buffer(Dtype::kBF16, {kNumel}, state.w.values())));
  }
}

// Holds for any slices, and for unchanged weights if gradients are not finite.
TEST(OptimizerOps, quantized_weights_are_those_of_the_master) {
  std::vector<int64_t> cuts(kBlocks + 1);
  for (int64_t block = 0; block <= kBlocks; ++block) cuts[block] = block * kBlock;
  for (const Rule rule : {Rule::kAdamw, Rule::kLamb}) {
    State with, without;
    with.writes_quantized = true;
    for (int number = 1; number <= kSteps; ++number) {
      with.step(rule, number, number % 2 == 0 ? cuts : std::vector<int64_t>{0, kNumel});
      without.step(rule, number);
      with.expect_quantized_weights();
    }
    EXPECT_TRUE(with.w.same_bits(without.w)) << "the master is the same";
    EXPECT_TRUE(with.m.same_bits(without.m));
    EXPECT_EQ(with.counts.values()[3 * kNumFp8Counts + 1] > 0, true) << "some weights saturate";
    const State before = with;
    with.grad_scale = Buffer(Dtype::kF32, {1}, {NAN});
    with.step(rule, kSteps + 1);
    EXPECT_TRUE(with.w.same_bits(before.w));
    EXPECT_TRUE(with.quantized.same_bits(before.quantized));
    EXPECT_TRUE(with.amax.same_bits(before.amax));
    EXPECT_TRUE(with.counts.same_bits(before.counts));
  }
}

TEST(OptimizerOps, padding_is_not_written) {
  const Values sevens(kNumel, 7.0);
  for (const Rule rule : {Rule::kAdamw, Rule::kLamb}) {
    State state;
    state.w = state.m = state.v = Buffer(Dtype::kF32, {kNumel}, sevens);
    state.step(rule, 1, {0, kNumel}, sevens);
    for (const Buffer* buffer : {&state.w, &state.m, &state.v, &state.grad}) {
      const Values values = buffer->values();
      for (int64_t i = 0; i < kNumel; ++i) ASSERT_TRUE(owner_of(i) >= 0 || values[i] == 7.0) << i << ": " << values[i];
    }
    EXPECT_TRUE(padding_is_nan(state.param.values()));
  }
}

TEST(OptimizerOps, without_param_the_master_is_the_same) {
  State with, without;
  with.step(Rule::kAdamw, 1);
  without.grad = Buffer(Dtype::kF32, {kNumel}, grad_of(1));
  AdamwUpdate args = without.adamw(1, 0, kNumel);
  args.param = Tensor();
  run_checked(cpu::adamw_update, args);
  EXPECT_TRUE(without.w.same_bits(with.w));
}

TEST(OptimizerOps, slices_equal_one_call_bit_for_bit) {
  const std::vector<std::vector<int64_t>> all_cuts = {{0, 1, kBlocks}, {0, 2, 3, 4, 9, 15, 16, kBlocks}};
  std::vector<int64_t> every_block(kBlocks + 1);
  std::iota(every_block.begin(), every_block.end(), 0);
  for (const Rule rule : {Rule::kAdamw, Rule::kLamb}) {
    State whole;
    for (int number = 1; number <= kSteps; ++number) whole.step(rule, number);
    for (std::vector<int64_t> cuts : {all_cuts[0], all_cuts[1], every_block}) {
      for (int64_t& cut : cuts) cut *= kBlock;
      State sliced;
      for (int number = 1; number <= kSteps; ++number) sliced.step(rule, number, cuts);
      EXPECT_TRUE(sliced.same_bits(whole)) << (rule == Rule::kLamb ? "lamb, " : "adamw, ") << cuts.size() << " cuts";
    }
  }
}

TEST(OptimizerOps, lamb_trust_is_one_for_excluded_tensors_or_without_a_norm) {
  const auto moved_by = [](float decay, float weight_sumsq, float direction_sumsq) {
    const Buffer w(Dtype::kF32, {kBlock}, Values(kBlock, 1.0)), direction(Dtype::kF32, {kBlock}, Values(kBlock, 1.0));
    const Buffer weight(Dtype::kF32, {1}, {weight_sumsq}), dir(Dtype::kF32, {1}, {direction_sumsq});
    const Buffer owners(Dtype::kI32, {1}, {0.0}), decays(Dtype::kF32, {1}, {decay}), scale(Dtype::kF32, {1}, {1.0});
    cpu::lamb_apply({.master = w,
                     .param = {},
                     .direction = direction,
                     .weight_sumsq = weight,
                     .direction_sumsq = dir,
                     .grad_scale = scale,
                     .block_tensor = owners,
                     .decay = decays,
                     .lr = 0.125f});
    return 1 - w.values()[0];
  };
  EXPECT_EQ(moved_by(0.1f, 16, 4), 0.25);  // |w| / |direction| = 4 / 2
  EXPECT_EQ(moved_by(0.0f, 16, 4), 0.25);  // no decay: the ratio still applies
  EXPECT_EQ(moved_by(-1.0f, 16, 4), 0.125);
  EXPECT_EQ(moved_by(0.1f, 0, 4), 0.125);
  EXPECT_EQ(moved_by(0.1f, 16, 0), 0.125);
}

TEST(OptimizerOps, gradients_that_are_not_finite_change_nothing) {
  for (const Rule rule : {Rule::kAdamw, Rule::kLamb}) {
    State state;
    state.step(rule, 1);
    const Values w = state.w.values(), m = state.m.values(), v = state.v.values();
    const Buffer bad_scale(Dtype::kF32, {1}, {NAN});
    state.grad_scale = bad_scale;
    state.step(rule, 2);
    const auto same = [](double a, double b) { return a == b || (std::isnan(a) && std::isnan(b)); };  // NaN: padding
    for (const auto& [now, before] : {std::pair{state.w.values(), w}, {state.m.values(), m}, {state.v.values(), v}})
      EXPECT_TRUE(std::equal(now.begin(), now.end(), before.begin(), same));
  }
}

TEST(OptimizerOps, averages_of_weights_follow_a_float64_loop) {
  constexpr float kDecay = 0.9f;
  Values expected = random_values(kNumel, "average");
  const Buffer ema(Dtype::kF32, {kNumel}, expected), sliced(Dtype::kF32, {kNumel}, expected);
  const auto average = [&](const Buffer& into, const Buffer& weights, double grad_scale, int64_t first, int64_t count) {
    const Buffer scale(Dtype::kF32, {1}, {grad_scale});
    run_checked(cpu::average_weights, {.ema = Tensor(into).flat(first, count),
                                       .master = Tensor(weights).flat(first, count),
                                       .grad_scale = scale,
                                       .decay = kDecay});
  };
  for (int step = 1; step <= kSteps; ++step) {
    const Values w = random_values(kNumel, fmt::format("weights {}", step));
    const Buffer weights(Dtype::kF32, {kNumel}, w);
    average(ema, weights, kGradScale, 0, kNumel);
    for (int64_t block = 0; block < kBlocks; ++block) average(sliced, weights, kGradScale, block * kBlock, kBlock);
    for (int64_t i = 0; i < kNumel; ++i) expected[i] = kDecay * expected[i] + (1 - double{kDecay}) * w[i];
    expect_close("ema", ema.values(), expected, 1e-6);
    EXPECT_TRUE(sliced.same_bits(ema)) << "step " << step;
  }
  average(sliced, Buffer(Dtype::kF32, {kNumel}, grad_of(1)), NAN, 0, kNumel);
  EXPECT_TRUE(sliced.same_bits(ema)) << "a step that changes nothing";
}

TEST(OptimizerOps, sumsq_is_added_per_tensor) {
  const State state;
  const Values before = {1, 2, 3, 4}, w = initial_weights();
  Values expected = before;
  for (int64_t i = 0; i < kNumel; ++i) {
    if (owner_of(i) >= 0) expected[owner_of(i)] += w[i] * w[i];
  }
  const Buffer whole(Dtype::kF32, {kTensors}, before), again(Dtype::kF32, {kTensors}, before);
  state.sumsq(whole, state.w, 0, kNumel);
  state.sumsq(again, state.w, 0, kNumel);
  expect_close("sumsq", whole.values(), expected, 1e-7);
  EXPECT_TRUE(again.same_bits(whole));

  const Buffer sliced(Dtype::kF32, {kTensors}, before);
  for (int64_t block = 0; block < kBlocks; ++block) state.sumsq(sliced, state.w, block * kBlock, kBlock);
  expect_close("sumsq of slices", sliced.values(), expected, 1e-6);
}

TEST(OptimizerOps, sumsq_of_many_elements_keeps_its_digits) {
  constexpr int64_t kMany = 1 << 22;  // an fp32 sum would stop growing at 2^24 · 0.01
  const Buffer inp(Dtype::kF32, {kMany}, Values(kMany, 3.1)),
      owners(Dtype::kI32, {kMany / kBlock}, Values(kMany / kBlock, 0.0));
  const Buffer sumsq(Dtype::kF32, {1}, {0.0});
  cpu::tensor_sumsq({.sumsq = sumsq, .inp = inp, .block_tensor = owners});
  const double square = double{3.1f} * 3.1f;
  EXPECT_NEAR(sumsq.values()[0], kMany * square, 1e-7 * kMany * square);
}

TEST(OptimizerOps, sumsq_carries_nan_and_infinity_of_one_tensor_alone) {
  for (const double bad : {double{NAN}, double{INFINITY}, 1e30}) {  // 1e30 squared overflows fp32
    Values w = initial_weights();
    w[5 * kBlock + 77] = bad;  // tensor 2
    const Buffer inp(Dtype::kF32, {kNumel}, w), sumsq(Dtype::kF32, {kTensors}, Values(kTensors, 0.0));
    State().sumsq(sumsq, inp, 0, kNumel);
    const Values sums = sumsq.values();
    EXPECT_EQ(std::isnan(sums[2]), std::isnan(bad));
    for (int tensor = 0; tensor < kTensors; ++tensor) EXPECT_EQ(std::isfinite(sums[tensor]), tensor != 2) << bad;
  }
}

TEST(OptimizerOps, weighted_sum_is_added) {
  const Buffer out(Dtype::kF32, {1}, {10.0}), inp(Dtype::kF32, {3}, {1.0, 2.0, 4.0});
  const Buffer weight(Dtype::kF32, {3}, {0.5, 0.0, 0.25});
  run_checked(cpu::weighted_sum, {.out = out, .inp = inp, .weight = weight});
  EXPECT_EQ(out.values()[0], 11.5);
}

TEST(OptimizerOps, clip_scale_bounds_the_norm) {
  const auto clip = [](double norm_sq, float max_norm) {
    const Buffer scale(Dtype::kF32, {1}), norm(Dtype::kF32, {1}), square(Dtype::kF32, {1}, {norm_sq});
    run_checked(cpu::clip_scale, {.scale = scale, .norm = norm, .norm_sq = square, .max_norm = max_norm});
    return std::pair(norm.values()[0], scale.values()[0]);
  };
  EXPECT_EQ(clip(16, 1), std::pair(4.0, 0.25));
  EXPECT_EQ(clip(16, 4), std::pair(4.0, 1.0));
  EXPECT_EQ(clip(16, 100), std::pair(4.0, 1.0));
  EXPECT_EQ(clip(16, 0), std::pair(4.0, 1.0));
  EXPECT_EQ(clip(0, 1), std::pair(0.0, 1.0));
  EXPECT_EQ(clip(INFINITY, 1).first, INFINITY);
  EXPECT_TRUE(std::isnan(clip(INFINITY, 1).second));
  EXPECT_TRUE(std::isnan(clip(NAN, 0).second));
  EXPECT_TRUE(std::isnan(clip(NAN, 1).first));
  EXPECT_TRUE(std::isnan(clip(NAN, 1).second));
}

TEST(OptimizerOps, clip_scale_is_nan_above_a_limit) {
  const auto clip = [](float norm_limit, float loss_limit) {
    const Buffer scale(Dtype::kF32, {1}), norm(Dtype::kF32, {1}), square(Dtype::kF32, {1}, {16}),
        loss(Dtype::kF32, {1}, {3});
    run_checked(cpu::clip_scale, {.scale = scale,
                                  .norm = norm,
                                  .norm_sq = square,
                                  .loss = loss,
                                  .max_norm = 2,
                                  .norm_limit = norm_limit,
                                  .loss_limit = loss_limit});
    EXPECT_EQ(norm.values()[0], 4);
    return scale.values()[0];
  };
  EXPECT_EQ(clip(4, 3), 0.5);
  EXPECT_EQ(clip(INFINITY, INFINITY), 0.5);
  EXPECT_TRUE(std::isnan(clip(3.9f, 3)));
  EXPECT_TRUE(std::isnan(clip(4, 2.9f)));
}

TEST(OptimizerOps, unknown_owner_is_refused) {
  const Buffer inp(Dtype::kF32, {kBlock}, Values(kBlock, 0.0)), sumsq(Dtype::kF32, {1}, {0.0});
  for (const double owner : {-2.0, 1.0}) {
    const Buffer owners(Dtype::kI32, {1}, {owner});
    EXPECT_THROW(cpu::tensor_sumsq({.sumsq = sumsq, .inp = inp, .block_tensor = owners}), Fatal);
  }
}

TEST(OptimizerOps, check_refuses_wrong_operands) {
  const State state;
  const auto refuses = [&](auto change) {
    AdamwUpdate args = state.adamw(1, 0, kNumel);
    ASSERT_NO_THROW(check(args));
    change(args);
    EXPECT_THROW(check(args), Fatal);
  };
  refuses([](auto& a) { a.moments.exp_avg = a.moments.exp_avg.flat(0, kBlock); });
  refuses([](auto& a) { a.moments.block_tensor.shape[0] -= 1; });
  refuses([](auto& a) { a.moments.grad_scale = Tensor(); });
  refuses([](auto& a) { a.moments.bias_correction2 = 0; });
  refuses([](auto& a) { a.param.dtype = Dtype::kF32; });
  const Buffer odd(Dtype::kF32, {kBlock + 1}), one(Dtype::kF32, {1}), owners(Dtype::kI32, {1});
  EXPECT_THROW(check(TensorSumsq{.sumsq = one, .inp = odd, .block_tensor = owners}), Fatal);
  EXPECT_THROW(check(ClipScale{.scale = one, .norm = one, .norm_sq = one, .max_norm = -1}), Fatal);
  EXPECT_THROW(check(WeightedSum{.out = one, .inp = odd, .weight = one}), Fatal);
}

}  // namespace
}  // namespace tri::test
