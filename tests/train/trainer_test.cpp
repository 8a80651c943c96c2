#include "lib/train/trainer.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <iterator>

#include "kernels/core/dims.h"
#include "kernels/no_target.h"
#include "lib/infer/sampling.h"
#include "tests/train/one_rank.h"

namespace tri::test {
namespace {

TEST(Trainer, takes_exactly_the_memory_that_was_predicted) {
  for (const OptimizerRow& row : optimizers())
    for (const Dtype precision : {Dtype::kF32, Dtype::kBF16})
      for (const Dtype moments : {Dtype::kF32, Dtype::kBF16})
        for (const int zero : {0, 1, 2}) {
          Config c = tiny_config();
          c.optimizer.name = row.kind;
          c.optimizer.moments = moments;
          c.optimizer.ema = moments == Dtype::kF32 ? 0.9 : 0;
          c.precision.compute = precision;
          c.parallel.zero = zero;
          const OneRank rank(c);
          EXPECT_EQ(rank.predicted, rank.arena->bytes_by_name());
        }
}

// With one rank, the sums are its own statistics plus what the step fills in.
TEST(Trainer, a_step_sums_the_statistics_of_the_ranks) {
  OneRank rank(tiny_config());
  const StepStatistics local{.norm_sq = 7,
                             .loss = 7,
                             .stop = 1,
                             .saved = 2,
                             .failed = 3,
                             .time_needed = 6,
                             .requests = StepStatistics::pack_requests(true, 3)};
  const auto step = [&](const StepStatistics& numbers) {
    return rank.trainer->step(0, rank.tokens(0, 0), rank.tokens(0, 1), numbers);
  };
  const StepResult result = step(local);
  EXPECT_EQ(result.sums.loss, static_cast<float>(result.loss));
  EXPECT_NEAR(result.sums.norm_sq, result.grad_norm * result.grad_norm, 1e-5 * result.sums.norm_sq);
  EXPECT_NE(result.sums.loss, local.loss);
  EXPECT_EQ(result.sums.stop, 1);
  EXPECT_EQ(result.sums.num_saved(), 2);
  EXPECT_EQ(result.sums.num_failed(), 3);
  EXPECT_EQ(result.sums.time_needed, 6);
  EXPECT_TRUE(result.sums.save_due());
  EXPECT_EQ(result.sums.steps_to_record(), 3);
  const StepStatistics next = step({}).sums;
  EXPECT_EQ(next.stop + next.saved + next.failed + next.time_needed + next.requests, 0) << "left from the step before";
}

TEST(Trainer, a_nan_is_found_and_named_and_changes_nothing) {
  for (const OptimizerRow& row : optimizers()) {
    Config c = tiny_config();
    c.optimizer.name = row.kind;
    OneRank rank(c);
    EXPECT_TRUE(rank.step(0).finite());
    rank.trainer->runtime().synchronize();
    float* bad = nullptr;
    for (const Parameter& parameter : rank.parameters())
      if (parameter.spec.name == weight_of(modules::kFc2, 1)) bad = parameter.weight.as<float>() + 3;
    const float good = std::exchange(*bad, NAN);
    const auto state = [&] {
      *bad = good;
      auto values = rank.weights();
      *bad = NAN;
      return values;
    };
    const auto before = state();
    EXPECT_FALSE(rank.step(1).finite());
    EXPECT_EQ(state(), before);
    const std::vector<std::string> names = rank.trainer->not_finite_names();
    EXPECT_NE(std::find(names.begin(), names.end(), "loss of microbatch 0"), names.end());
    EXPECT_NE(std::find(names.begin(), names.end(), "gradient of " + weight_of(modules::kFc2, 1)), names.end());
  }
}

// With beta1 = 0 the first moment is the gradient, which is equal at each step here: only the rounding differs.
TEST(Trainer, moments_in_bf16_are_rounded_again_at_each_step) {
  Config c = tiny_config();
  c.optimizer.moments = Dtype::kBF16;
  c.optimizer.beta1 = 0;
  c.lr.peak = 1e-30;  // no weight moves
  OneRank rank(c);
  const auto first_moments_after = [&](int64_t number) {
    rank.trainer->step(number, rank.tokens(0, 0), rank.tokens(0, 1));
    rank.trainer->runtime().synchronize();
    std::vector<float> all;
    for (const BucketSlice& slice : rank.trainer->store().memory.slices())
      for (const float value : to_floats(slice.state[0])) all.push_back(value);
    return all;
  };
  const std::vector<float> at_0 = first_moments_after(0), at_1 = first_moments_after(1);
  size_t differ = 0, count = 0;
  for (size_t i = 0; i < at_0.size(); ++i) {
    count += at_0[i] != 0;
    differ += at_0[i] != at_1[i];
    EXPECT_NEAR(at_0[i], at_1[i], std::fabs(at_0[i]) / 127);
  }
  EXPECT_GT(differ, count / 5);  // a third is expected
  EXPECT_LT(differ, count / 2);
  EXPECT_EQ(first_moments_after(0), at_0);
}

TEST(Trainer, a_spike_changes_nothing) {
  for (const OptimizerRow& row : optimizers())
    for (const int zero : {0, 1, 2}) {
      Config c = tiny_config();
      c.optimizer.name = row.kind;
      c.parallel.zero = zero;
      OneRank rank(c), other(c);
      rank.step(0);
      other.step(0);
      const auto before = rank.weights();
      const StepResult normal = other.step(1);
      const auto loss = static_cast<float>(normal.loss), norm = static_cast<float>(normal.grad_norm);
      const auto spike = [&](const StepLimits& limits) {
        return rank.trainer->step(1, rank.tokens(1, 0), rank.tokens(1, 1), {}, nullptr, limits);
      };
      for (const StepLimits& limits :
           {StepLimits{.loss = std::nextafter(loss, 0.0f)}, StepLimits{.grad_norm = std::nextafter(norm, 0.0f)}}) {
        const StepResult skipped = spike(limits);
        EXPECT_TRUE(skipped.is_spike && skipped.finite());
        EXPECT_EQ(skipped.loss, normal.loss);
        EXPECT_EQ(skipped.grad_norm, normal.grad_norm);
        EXPECT_EQ(rank.weights(), before);
      }
      EXPECT_FALSE(spike({.loss = loss, .grad_norm = norm}).is_spike);
      EXPECT_EQ(rank.weights(), other.weights()) << "the moments have changed";
    }
}

TEST(Trainer, the_average_of_the_weights_follows_every_update_and_changes_no_weight) {
  for (const OptimizerRow& row : optimizers())
    for (const Dtype precision : {Dtype::kF32, Dtype::kBF16})
      for (const int zero : {0, 1, 2}) {
        Config c = tiny_config();
        c.optimizer.name = row.kind;
        c.precision.compute = precision;
        c.parallel.zero = zero;
        OneRank plain(c);
        c.optimizer.ema = 0.75;  // exact
        OneRank rank(c);
        // Returns the elements of all slices, without padding.
        const auto all = [&](Tensor BucketSlice::*member) {
          rank.trainer->runtime().synchronize();
          std::vector<float> values;
          for (const BucketSlice& slice : rank.trainer->store().memory.slices()) {
            const std::vector<float> of_slice = to_floats(slice.*member);
            for (size_t i = 0; i < of_slice.size(); ++i)
              if (slice.block_tensor.as<int32_t>()[i / kBlock] >= 0) values.push_back(of_slice[i]);
          }
          return values;
        };
        std::vector<float> expected = all(&BucketSlice::master);
        EXPECT_EQ(all(&BucketSlice::ema), expected);
        for (int step = 0; step < 4; ++step) {
          rank.step(step);
          plain.step(step);
          const std::vector<float> weights = all(&BucketSlice::master), average = all(&BucketSlice::ema);
          for (size_t i = 0; i < expected.size(); ++i) {
            ASSERT_NEAR(average[i], 0.75f * expected[i] + 0.25f * weights[i], 1e-6f);
            expected[i] = average[i];
          }
        }
        EXPECT_NE(expected, all(&BucketSlice::master));
        EXPECT_EQ(rank.weights(), plain.weights());
        const StepResult skipped =
            rank.trainer->step(4, rank.tokens(4, 0), rank.tokens(4, 1), {}, nullptr, {.grad_norm = 0.0f});
        EXPECT_TRUE(skipped.is_spike);
        EXPECT_EQ(all(&BucketSlice::ema), expected);
      }
}

TEST(Trainer, updates_alongside_the_next_step_change_no_bit) {
  for (const Dtype precision : {Dtype::kF32, Dtype::kBF16})
    for (const int zero : {0, 1})
      for (const Recompute recompute : {Recompute::kNone, Recompute::kFull}) {
        Config c = tiny_config();
        c.precision.compute = c.optimizer.moments = precision;
        c.optimizer.ema = 0.75;
        c.optimizer.clip = 0.5;
        c.parallel.zero = zero;
        c.parallel.recompute = recompute;
        c.parallel.bucket_elements = 1024;
        OneRank alongside(c, UpdateEnd::kNextStep);
        c.parallel.overlap_update = false;
        OneRank after(c);
        EXPECT_EQ(after.trainer->runtime().update_streams().updates, nullptr);
        const auto state = [](OneRank& rank) {
          rank.trainer->finish_update();
          rank.trainer->runtime().synchronize();
          std::vector<float> values;
          for (const BucketSlice& slice : rank.trainer->store().memory.slices())
            for (const Tensor& tensor : {slice.master, slice.state[0], slice.state[1], slice.ema})
              std::ranges::copy(to_floats(tensor), std::back_inserter(values));
          return values;
        };
        for (int64_t step = 0; step < 6; ++step) {
          const StepLimits limits{.grad_norm = step == 2 ? 0.0f : INFINITY};  // a spike
          const auto run = [&](OneRank& rank) {
            return rank.trainer->step(step, rank.tokens(step, 0), rank.tokens(step, 1), {}, nullptr, limits);
          };
          const StepResult one = run(alongside), other = run(after);
          EXPECT_EQ(one.loss, other.loss) << step;
          EXPECT_EQ(one.grad_norm, other.grad_norm) << step;
          if (step % 2 == 1) {
            EXPECT_EQ(state(alongside), state(after)) << step;
          }
        }
        EXPECT_EQ(alongside.weights(), after.weights());
      }
}

// The update waits for a flag that is set after the step has returned its result.
TEST(Trainer, a_step_does_not_wait_for_its_update_and_the_next_one_does) {
  OneRank alongside(tiny_config(), UpdateEnd::kNextStep), after(tiny_config());
  std::atomic<uint32_t> flag = 0;
  static_assert(sizeof flag == sizeof(uint32_t));
  Stream& updates = *alongside.trainer->runtime().update_streams().updates;
  updates.wait_flag(reinterpret_cast<uint32_t*>(&flag), 1);
  const auto before = to_floats(alongside.parameters().front().weight);
  EXPECT_EQ(alongside.step(0).loss, after.step(0).loss);
  EXPECT_EQ(to_floats(alongside.parameters().front().weight), before);
  flag = 1;
  EXPECT_EQ(alongside.step(1).loss, after.step(1).loss);
  alongside.trainer->finish_update();
  EXPECT_EQ(alongside.weights(), after.weights());
}

// Casts of a layer without FP8 see no tensor, so its history only decays: scales from it would be far too large.
TEST(Trainer, layers_that_multiply_fp8_again_make_new_scales) {
  Config c = tiny_config();
  c.model.hidden = c.model.ffn_hidden = 64;
  c.model.seq_len = 16;
  c.precision.gemm = GemmFormat::kFp8;
  OneRank first(c);
  first.step(0);
  const std::vector<float> history = first.trainer->fp8_history();
  Config without_last_layer = c;
  without_last_layer.precision.fp8_last_layers = 1;
  OneRank between(without_last_layer);
  ASSERT_TRUE(between.trainer->state_loaded(history));
  for (int64_t step = 1; step < 40; ++step) between.step(step);

  OneRank later(c);
  ASSERT_TRUE(later.trainer->state_loaded(between.trainer->fp8_history()));
  for (const Fp8Numbers& slot : later.step(40).fp8) EXPECT_EQ(slot.saturated, 0);
}

TEST(Trainer, fp8_history_of_another_model_is_refused) {
  Config c = tiny_config();
  c.model.hidden = c.model.ffn_hidden = 64;
  c.model.seq_len = 16;
  c.precision.gemm = GemmFormat::kFp8;
  OneRank first(c), later(c), damaged(c);
  first.step(0);
  const std::vector<float> history = first.trainer->fp8_history();
  ASSERT_TRUE(later.trainer->state_loaded(history));
  EXPECT_EQ(later.trainer->fp8_history(), history);
  const auto refused = damaged.trainer->state_loaded({0.0f});
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, ExitCode::kFile);
}

// Including the history of a checkpoint that was written with FP8.
TEST(Trainer, without_fp8_its_state_is_empty) {
  OneRank rank(tiny_config());
  ASSERT_EQ(rank.trainer->engine().stage().fp8(), nullptr);
  ASSERT_TRUE(rank.trainer->state_loaded({1.0f, 2.0f}));
  EXPECT_TRUE(rank.step(0).fp8.empty());
  EXPECT_TRUE(rank.trainer->fp8_history().empty());
}

TEST(Trainer, evaluation_is_the_loss_of_a_step_and_changes_nothing) {
  OneRank rank(tiny_config());
  const auto before = rank.weights();
  const double evaluated = rank.evaluator->evaluate(rank.tokens(0, 0), rank.tokens(0, 1));
  EXPECT_EQ(rank.weights(), before);
  EXPECT_EQ(evaluated, rank.step(0).loss);
}

// A step of a ramp equals one of a run whose batch has that size, and an evaluation does not depend on the step's size.
TEST(Trainer, a_ramp_changes_the_batch_between_steps) {
  for (const int zero : {0, 1, 2}) {
    SCOPED_TRACE(zero);
    Config c = tiny_config();
    c.parallel.zero = zero;
    c.lr.peak = 1e-30;  // the weights keep their values
    OneRank large(c);
    Config of_small = c;
    of_small.data.global_batch = 2;
    OneRank small(of_small);
    c.data.global_batch = DataConfig{}.global_batch;
    c.data.batch_ramp = "0:2 12:4";  // from sample 2 on
    c.data.micro_batch = of_small.data.micro_batch = 1;
    OneRank ramp(c), one_by_one(of_small);
    EXPECT_EQ(ramp.config.data.global_batch, 4);
    const auto step = [&](int64_t number, int64_t first_sample, int samples) {
      const std::vector<int32_t> inputs = ramp.tokens(number, 0), targets = ramp.tokens(number, 1);
      const auto count = static_cast<size_t>(samples * c.model.seq_len);
      return ramp.trainer->step(StepPlace{number, first_sample}, std::span(inputs).first(count),
                                std::span(targets).first(count));
    };
    const auto expect_equal = [](const StepResult& a, const StepResult& b) {
      EXPECT_NEAR(a.loss, b.loss, 1e-6);
      EXPECT_NEAR(a.grad_norm, b.grad_norm, 1e-5);
    };
    const double evaluated = ramp.evaluator->evaluate(ramp.tokens(0, 0), ramp.tokens(0, 1));
    const StepResult first = step(0, 0, 2);
    expect_equal(first, small.step(0));
    const StepResult same = one_by_one.step(0);
    EXPECT_EQ(first.loss, same.loss);
    EXPECT_EQ(first.grad_norm, same.grad_norm);
    EXPECT_EQ(ramp.evaluator->evaluate(ramp.tokens(0, 0), ramp.tokens(0, 1)), evaluated);
    expect_equal(step(0, 0, 2), first);
    expect_equal(step(1, 2, 4), large.step(1));
    expect_equal(step(0, 0, 2), first);
  }
}

// The last batch has no microbatches without samples: their tokens are not even given.
TEST(Trainer, an_evaluation_counts_every_sample_once_whatever_the_batch) {
  constexpr int64_t kSamples = 5;
  double expected = 0;
  for (const int batch : {1, 2, 3, 4, 5, 8, 16})
    for (const int micro : {1, 2}) {
      if (batch % micro != 0) continue;
      SCOPED_TRACE(fmt::format("global batch {}, microbatch {}", batch, micro));
      Config c = tiny_config();
      c.data.global_batch = batch;
      c.data.micro_batch = micro;
      OneRank rank(c);
      const EvaluationSize size = evaluation_size(rank.config, kSamples, 1000);
      EXPECT_EQ(size.batches, (kSamples + batch - 1) / batch);
      int64_t next = 0;
      const int64_t end = round_up(kSamples, micro);
      std::vector<int32_t> inputs, targets;
      const Evaluation result = rank.evaluator->evaluate(
          size,
          [&] {
            inputs.clear(), targets.clear();
            for (int n = 0; n < batch && next < end; ++n, ++next)
              for (int t = 0; t <= c.model.seq_len; ++t) {
                const auto token = static_cast<int32_t>(random_u64(5, static_cast<uint64_t>(next * 100 + t)) % 11);
                if (t < c.model.seq_len) inputs.push_back(next < kSamples ? token : 0);
                if (t > 0) targets.push_back(next < kSamples ? token : kNoTarget);
              }
            return StepTokens{inputs, targets};
          },
          nullptr);
      EXPECT_EQ(result.samples, kSamples);
      EXPECT_EQ(result.tokens, kSamples * c.model.seq_len);
      if (batch == 1) expected = result.loss;
      EXPECT_NEAR(result.loss, expected, 1e-6 * expected);
    }
  EXPECT_GT(expected, 1);
}

TEST(Trainer, evaluations_cover_a_split_up_to_the_requested_batches) {
  Config c = tiny_config();
  c.data.global_batch = 4;
  const auto size = [&](int64_t available, int64_t most) {
    const EvaluationSize found = evaluation_size(c, available, most);
    return std::pair(found.batches, found.samples);
  };
  EXPECT_EQ(size(0, 8), std::pair(int64_t{0}, int64_t{0}));
  EXPECT_EQ(size(3, 0), std::pair(int64_t{0}, int64_t{0}));
  EXPECT_EQ(size(3, 8), std::pair(int64_t{1}, int64_t{3}));
  EXPECT_EQ(size(8, 8), std::pair(int64_t{2}, int64_t{8}));
  EXPECT_EQ(size(9, 8), std::pair(int64_t{3}, int64_t{9}));
  EXPECT_EQ(size(9, 2), std::pair(int64_t{2}, int64_t{8}));
}

TEST(Trainer, logits_of_a_prefix_do_not_depend_on_what_follows) {
  OneRank rank(tiny_config());
  const std::vector<int32_t> text = {1, 5, 2, 7};
  const std::vector<float> three = rank.evaluator->next_token_logits(std::span(text).first(3));
  rank.evaluator->next_token_logits(text);
  EXPECT_EQ(rank.evaluator->next_token_logits(std::span(text).first(3)), three);
  EXPECT_EQ(three.size(), 11u);
}

// Zero 2 adds up microbatches one reduction at a time, zero 0 and 1 inside the GEMMs: rounding differs.
TEST(Zero, kinds_agree_on_one_rank_and_0_equals_1_bit_for_bit) {
  for (const OptimizerRow& row : optimizers())
    for (const Dtype precision : {Dtype::kF32, Dtype::kBF16}) {
      std::map<std::string, std::vector<float>> weights[3];
      std::vector<StepResult> results[3];
      for (const int zero : {0, 1, 2}) {
        Config c = tiny_config();
        c.optimizer.name = row.kind;
        c.precision.compute = precision;
        c.parallel.zero = zero;
        c.parallel.bucket_elements = 1024;
        OneRank rank(c);
        for (int step = 0; step < 3; ++step) results[zero].push_back(rank.step(step));
        weights[zero] = rank.weights();
      }
      EXPECT_TRUE(weights[0] == weights[1]);
      for (size_t step = 0; step < 3; ++step) {
        const double tolerance = precision == Dtype::kF32 ? 1e-6 : 1e-3;
        EXPECT_NEAR(results[2][step].loss, results[0][step].loss, tolerance * results[0][step].loss);
        EXPECT_NEAR(results[2][step].grad_norm, results[0][step].grad_norm,
                    10 * tolerance * results[0][step].grad_norm);
      }
    }
}

// One AdamW step in float64 from the gradients that the step used: clipping, bias correction, decay of matrices only.
TEST(AdamW, a_step_is_the_papers) {
  Config c = tiny_config();
  c.parallel.zero = 0;
  c.optimizer.clip = 0.5;
  c.optimizer.weight_decay = 0.3;
  c.lr.peak = 0.01;
  c.lr.rule = LrRule::kConstant;
  OneRank rank(c);
  const auto before = rank.weights();
  const StepResult result = rank.step(0);
  ASSERT_GT(result.grad_norm, 0.5) << "nothing is clipped";
  const auto gradients = rank.gradients(), after = rank.weights();
  for (const Parameter& parameter : rank.parameters()) {
    const std::string& name = parameter.spec.name;
    const bool decays = name.find("norm") == std::string::npos && name.find("bias") == std::string::npos;
    EXPECT_EQ(parameter.spec.decay, decays) << name;
    for (size_t i = 0; i < before.at(name).size(); ++i) {
      const double w = before.at(name)[i], g = gradients.at(name)[i] * 0.5 / result.grad_norm;
      const double m = (1 - c.optimizer.beta1) * g / (1 - c.optimizer.beta1);
      const double v = (1 - c.optimizer.beta2) * g * g / (1 - c.optimizer.beta2);
      const double direction = m / (std::sqrt(v) + c.optimizer.eps) + (decays ? 0.3 * w : 0);
      EXPECT_NEAR(after.at(name)[i], w - 0.01 * direction, 2e-6) << name << "[" << i << "]";
    }
  }
}

TEST(Bf16, parameters_are_the_rounding_of_the_master_weights_and_training_follows_fp32) {
  Config c = tiny_config();
  OneRank exact(c);
  c.precision.compute = Dtype::kBF16;
  OneRank rank(c);
  for (int step = 0; step < 5; ++step) {
    const StepResult a = exact.step(step), b = rank.step(step);
    EXPECT_NEAR(b.loss, a.loss, 0.02 * a.loss);
  }
  rank.trainer->runtime().synchronize();
  const ChunkStoreTensors& chunk = rank.trainer->store().memory.tensors().chunks[0];
  for (int64_t i = 0; i < chunk.layout.size; ++i)
    ASSERT_EQ(chunk.parameters.as<bf16>()[i].bits, bf16(chunk.master.as<float>()[i]).bits);
}

TEST(SampleToken, greedy_takes_the_largest_and_top_k_and_top_p_cut_the_tail) {
  const std::vector<float> logits = {0.5f, 3.0f, 2.0f, 3.0f, -1.0f};
  EXPECT_EQ(sample_token(logits, {.temperature = 0, .top_k = 0}, 0.9), 1);
  for (double u = 0; u < 1; u += 0.05)
    for (const Sampling& two : {Sampling{.temperature = 1, .top_k = 2}, {.temperature = 1, .top_k = 0, .top_p = 0.7}})
      EXPECT_TRUE(sample_token(logits, two, u) == 1 || sample_token(logits, two, u) == 3);
  EXPECT_EQ(sample_token(logits, {.temperature = 1, .top_k = 1}, 0.999), 1);
  EXPECT_EQ(sample_token(logits, {.temperature = 1, .top_k = 0, .top_p = 0}, 0.999), 1);
}

TEST(SampleToken, draws_follow_the_softmax) {
  const std::vector<float> logits = {0.0f, 1.0f, 2.0f};
  const double temperature = 0.7;
  double total = 0;
  for (const float l : logits) total += std::exp(l / temperature);
  std::vector<int> counts(3);
  constexpr int kDraws = 10000;
  for (int i = 0; i < kDraws; ++i)
    ++counts[static_cast<size_t>(sample_token(logits, {.temperature = temperature, .top_k = 0}, (i + 0.5) / kDraws))];
  for (size_t i = 0; i < 3; ++i) EXPECT_NEAR(counts[i], kDraws * std::exp(logits[i] / temperature) / total, 2);
}

}  // namespace
}  // namespace tri::test
