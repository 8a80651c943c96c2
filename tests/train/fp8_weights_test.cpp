// Weights stored only in FP8, on one rank: their memory, their origin, and that a resume, an evaluation and a step that
// is not finite leave them correct. Several ranks: tests/mp/fp8.cpp.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "tests/train/one_rank.h"

namespace tri::test {
namespace {

Config fp8_config() {
  Config c = tiny_config();
  c.model.layers = 3;
  c.model.hidden = c.model.ffn_hidden = 64;
  c.model.seq_len = 16;
  c.lr.peak = 1e-2;
  c.precision.compute = Dtype::kBF16;
  c.precision.gemm = GemmFormat::kFp8;
  c.precision.fp8_first_layers = 1;
  c.parallel.bucket_elements = 10000;
  return c;
}

constexpr int64_t kQuantized = 2 * (4 + 2) * 64 * 64;  // of two layers: qkv, proj, fc1, fc2

std::vector<Config> variants() {
  std::vector<Config> all;
  for (const int zero : {0, 1, 2}) {
    all.push_back(fp8_config());
    all.back().parallel.zero = zero;
  }
  all[0].optimizer.name = OptimizerKind::kLamb;
  all[1].optimizer.moments = Dtype::kBF16;
  all[2].model.activation = Activation::kSwiglu;
  all[2].model.bias = false;
  return all;
}

// All state that the next step's bits depend on.
struct State {
  std::vector<std::vector<char>> masters, moments, quantized, parameters;
  bool operator==(const State&) const = default;
};

std::vector<char> bytes_of(const Tensor& tensor) {
  const auto* data = static_cast<const char*>(tensor.data);
  return {data, data + (tensor.empty() ? 0 : tensor.bytes())};
}

State state_of(OneRank& rank) {
  rank.trainer->runtime().synchronize();
  const ChunkStoreTensors& chunk = rank.trainer->store().memory.tensors().chunks.front();
  State state{.masters = {bytes_of(chunk.master)},
              .moments = {},
              .quantized = {bytes_of(chunk.quantized)},
              .parameters = {bytes_of(chunk.parameters)}};
  for (const Tensor& moment : chunk.state) state.moments.push_back(bytes_of(moment));
  return state;
}

// Restores what a checkpoint would: master weights, moments, history.
void load_state(OneRank& to, const State& state, const std::vector<float>& history) {
  const ChunkStoreTensors& chunk = to.trainer->store().memory.tensors().chunks.front();
  to.trainer->runtime().synchronize();
  std::memset(chunk.quantized.data, 0x55, static_cast<size_t>(chunk.quantized.bytes()));
  std::memcpy(chunk.master.data, state.masters.front().data(), state.masters.front().size());
  for (size_t i = 0; i < chunk.state.size(); ++i)
    std::memcpy(chunk.state[i].data, state.moments[i].data(), state.moments[i].size());
  ASSERT_TRUE(to.trainer->state_loaded(history));
}

std::vector<float> losses_and_numbers(const StepResult& result) {
  std::vector<float> all = {static_cast<float>(result.loss), static_cast<float>(result.grad_norm)};
  for (const Fp8Numbers& n : result.fp8)
    for (const float value : {n.scale, n.amax, n.elements, n.saturated, n.underflowed}) all.push_back(value);
  return all;
}

// The other orientation must be the transpose of the quantized values that the step has read.
void expect_transposes(OneRank& rank, const std::vector<char>& quantized) {
  const Fp8Tensors& fp8 = rank.trainer->engine().tensors().stage.fp8;
  const ChunkStoreTensors& chunk = rank.trainer->store().memory.tensors().chunks.front();
  const Fp8Slots slots(rank.config);
  const int64_t first = slots.of(Fp8Operand::kWeight, 0, 0);
  for (const Parameter& parameter : rank.parameters()) {
    if (parameter.spec.fp8_slot < 0) continue;
    const int layer = slots.layer_of(parameter.spec.fp8_slot);
    const auto linear = static_cast<size_t>(parameter.spec.fp8_slot - first - slots.place(layer, 0));
    const Fp8Weight& weight = fp8.weights.front()[static_cast<size_t>(layer)][linear];
    EXPECT_TRUE(weight.values.empty());
    const int64_t K = weight.transposed[0], N = weight.transposed[1];
    const char* const rows = quantized.data() + chunk.layout.offset[static_cast<size_t>(parameter.index)];
    for (int64_t i = 0; i < N * K; ++i)
      ASSERT_EQ(fp8_bytes(weight.transposed)[i % K * N + i / K], static_cast<uint8_t>(rows[i])) << parameter.spec.name;
  }
}

int64_t bytes_of(const std::vector<std::pair<std::string, int64_t>>& all, const std::string& name) {
  for (const auto& [of, bytes] : all)
    if (of == name) return bytes;
  return 0;
}

// Two bytes per weight that only FP8 GEMMs read, instead of four; predicted to the byte.
TEST(Fp8Weights, stand_in_place_of_the_bf16_weights) {
  for (const Config& config : variants()) {
    Config without = config;
    without.precision.gemm = GemmFormat::kCompute;
    const int64_t quantized = config.model.activation == Activation::kSwiglu ? kQuantized / 6 * 7 : kQuantized;
    const OneRank rank(config), plain(without);
    EXPECT_EQ(rank.predicted, rank.arena->bytes_by_name());
    EXPECT_EQ(plain.predicted, plain.arena->bytes_by_name());
    EXPECT_EQ(bytes_of(rank.predicted, "fp8 weights"), quantized) << "the transposes";
    EXPECT_EQ(bytes_of(plain.predicted, "fp8 weights"), 0);
    const ChunkStoreTensors &fp8 = rank.trainer->store().memory.tensors().chunks.front(),
                            &bf16 = plain.trainer->store().memory.tensors().chunks.front();
    EXPECT_EQ(fp8.quantized.bytes(), quantized);
    EXPECT_TRUE(bf16.quantized.empty());
    EXPECT_EQ(bytes_of(rank.predicted, "parameters"), fp8.quantized.bytes() + fp8.parameters.bytes());
    EXPECT_EQ(fp8.quantized.bytes() + fp8.parameters.bytes(), bf16.parameters.bytes() - quantized);
    EXPECT_EQ(bytes_of(rank.predicted, "master weights"), bytes_of(plain.predicted, "master weights"));
  }
}

// Checked with the scale that the step's GEMMs use, before the first step and after each.
TEST(Fp8Weights, are_the_master_weights_quantized) {
  for (const Config& config : variants()) {
    OneRank rank(config);
    for (int64_t step = 0; step < 4; ++step) {
      rank.trainer->runtime().synchronize();
      const Fp8Tensors& fp8 = rank.trainer->engine().tensors().stage.fp8;
      const ChunkStoreTensors& chunk = rank.trainer->store().memory.tensors().chunks.front();
      int64_t seen = 0;
      for (const Parameter& parameter : rank.parameters()) {
        if (parameter.spec.fp8_slot < 0) continue;
        const int64_t offset = chunk.layout.offset[static_cast<size_t>(parameter.index)], n = parameter.weight.numel();
        const float scale = fp8.scale().as<float>()[parameter.spec.fp8_slot];
        const float* const master = chunk.master.as<float>() + offset;
        float most = 0;
        for (int64_t i = 0; i < n; ++i) {
          ASSERT_EQ(fp8_bytes(parameter.weight)[i], fp8_encode(master[i] * scale, kE4M3Format)) << parameter.spec.name;
          most = std::max(most, std::fabs(master[i]));
        }
        EXPECT_EQ(fp8.amax().as<float>()[parameter.spec.fp8_slot], most)
            << "the statistics of the next step must include the new weights";
        EXPECT_EQ(fp8.counts.as<int64_t>()[parameter.spec.fp8_slot * kNumFp8Counts], n);
        if (step == 0) {
          EXPECT_LE(most * scale, 448 / kFp8Headroom);
          EXPECT_GT(most * scale, 448 / kFp8Headroom / 2);
        }
        seen += n;
      }
      EXPECT_EQ(seen, chunk.quantized.numel());
      const State before = state_of(rank);
      EXPECT_TRUE(rank.step(step).finite());
      expect_transposes(rank, before.quantized.front());
    }
  }
}

TEST(Fp8Weights, a_resume_makes_them_again_bit_for_bit) {
  for (const Config& config : variants())
    for (const int64_t stop : {1, 4}) {
      OneRank whole(config);
      for (int64_t step = 0; step < stop; ++step) whole.step(step);
      const State at_stop = state_of(whole);
      const std::vector<float> history = whole.trainer->fp8_history();
      OneRank resumed(config);
      resumed.step(7);  // has its own history, which must not matter
      load_state(resumed, at_stop, history);
      EXPECT_EQ(state_of(resumed), at_stop);
      for (int64_t step = stop; step < stop + 3; ++step)
        EXPECT_EQ(losses_and_numbers(resumed.step(step)), losses_and_numbers(whole.step(step))) << step;
      EXPECT_EQ(state_of(resumed), state_of(whole));
    }
}

// A checkpoint without FP8: the scales are those of the largest master weights, as at a start.
TEST(Fp8Weights, without_a_history_they_take_the_masters_scales) {
  const Config config = fp8_config();
  OneRank first(config);
  const State start = state_of(first);
  OneRank other(config);
  load_state(other, start, {});
  EXPECT_EQ(state_of(other), start);
  EXPECT_EQ(losses_and_numbers(other.step(0)), losses_and_numbers(first.step(0)));
}

TEST(Fp8Weights, evaluations_change_no_bit_and_no_number) {
  OneRank with(fp8_config()), without(fp8_config());
  for (int64_t step = 0; step < 3; ++step) {
    with.evaluator->evaluate(with.tokens(step + 50, 0), with.tokens(step + 50, 1));
    EXPECT_EQ(losses_and_numbers(with.step(step)), losses_and_numbers(without.step(step))) << step;
  }
  EXPECT_EQ(state_of(with), state_of(without));
}

// Nor do the statistics of the next step change, whose update processed the weights before the fault was known.
TEST(Fp8Weights, a_step_that_is_not_finite_changes_no_bit_and_no_number) {
  for (const Config& config : variants())
    for (const int64_t bad : {0, 2}) {
      OneRank rank(config), other(config);
      for (int64_t step = 0; step < 4; ++step) {
        if (step == bad) {
          const State before = state_of(rank);
          const Tensor norm =
              step_statistic(rank.trainer->engine().tensors().step_statistics, offsetof(StepStatistics, norm_sq));
          const float nan = NAN;
          const auto spoil = [&] { rank.trainer->runtime().compute().copy(norm.data, &nan, sizeof nan); };
          EXPECT_FALSE(rank.trainer->step(step, rank.tokens(9, 0), rank.tokens(9, 1), {}, spoil).finite());
          rank.trainer->not_finite_names();
          EXPECT_EQ(state_of(rank), before);
        }
        EXPECT_EQ(losses_and_numbers(rank.step(step)), losses_and_numbers(other.step(step))) << step;
      }
      EXPECT_EQ(state_of(rank), state_of(other));
    }
}

}  // namespace
}  // namespace tri::test
