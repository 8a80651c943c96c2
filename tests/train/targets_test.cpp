// Steps and evaluations of samples with masked targets and of samples of several documents.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "kernels/no_target.h"
#include "tests/train/one_rank.h"

namespace tri::test {
namespace {

// The batch of OneRank::tokens with some targets masked: how many differs between samples and microbatches.
std::vector<int32_t> masked_targets(const OneRank& rank, int64_t step) {
  std::vector<int32_t> targets = rank.tokens(step, 1);
  const auto length = static_cast<size_t>(rank.config.model.seq_len);
  for (size_t i = 0; i < targets.size(); ++i)
    if (i % length < 2 * (i / length)) targets[i] = kNoTarget;  // 0, 2, 4, 6 of 6
  return targets;
}

// The loss is the mean over all targets, not over microbatches of their means.
TEST(Trainer, masked_targets_do_not_count) {
  Config c = tiny_config();
  c.lr.peak = 1e-30;
  c.data.micro_batch = 1;
  OneRank one(c);
  std::vector<int32_t> inputs = one.tokens(0, 0), targets = masked_targets(one, 0);
  double sum = 0;
  std::map<std::string, std::vector<double>> gradients;  // of the sum
  for (size_t t = 0; t < targets.size(); ++t) {          // each target by itself
    if (targets[t] == kNoTarget) continue;
    std::vector<int32_t> only(targets.size(), kNoTarget);
    only[t] = targets[t];
    sum += one.trainer->step({.step = 0, .targets = 1}, inputs, only).loss;
    for (const auto& [name, values] : one.gradients()) {
      gradients[name].resize(values.size());
      for (size_t i = 0; i < values.size(); ++i) gradients[name][i] += values[i];
    }
  }
  const int count = 6 + 4 + 2;
  for (const int micro : {1, 2, 4}) {
    SCOPED_TRACE(micro);
    c.data.micro_batch = micro;
    OneRank rank(c);
    const StepResult result = rank.trainer->step({.step = 0, .targets = count}, inputs, targets);
    EXPECT_NEAR(result.loss, sum / count, 1e-6);
    EXPECT_FALSE(result.is_spike);
    for (const auto& [name, values] : rank.gradients())
      for (size_t i = 0; i < values.size(); ++i) EXPECT_NEAR(values[i], gradients[name][i] / count, 1e-6) << name;
    const EvaluationSize size{.batches = 1, .samples = 4};
    const Evaluation evaluation = rank.evaluator->evaluate(
        size,
        [&] {
          return StepTokens{inputs, targets};
        },
        nullptr);
    EXPECT_NEAR(evaluation.loss, sum / count, 1e-6);
    EXPECT_EQ(evaluation.tokens, count);
    EXPECT_EQ(evaluation.samples, 4);
  }
}

// Kinds of models that read positions, or bound what attention reads, in different ways.
std::vector<Config> models_with_documents() {
  Config learned = tiny_config();
  learned.model.seq_len = 12;
  Config rope = learned;
  rope.model.position = Position::kRope;
  rope.model.kv_heads = 2;
  Config windowed = rope;
  windowed.model.qk_norm = QkNorm::kHead;
  windowed.model.window = 3;
  windowed.model.rope_theta_local = 50;
  windowed.model.layer_pattern = {LayerAttention::kFull, LayerAttention::kWindow};
  Config full = rope;
  full.model.qk_norm = QkNorm::kFull;
  full.model.attention_softcap = 2;
  return {learned, rope, windowed, full};
}

// Lengths of the documents of four samples of 12 tokens.
const std::vector<std::vector<int>> kDocumentLengths = {{12}, {5, 7}, {1, 3, 2, 6}, {11, 1}};

// A document that is packed with others has the losses and gradients that it has as a sample of its own, at the start
// of a sample whose other targets are masked.
TEST(Trainer, packed_documents_equal_each_alone) {
  for (const Config& model : models_with_documents())
    for (const Recompute recompute : {Recompute::kNone, Recompute::kFull}) {
      Config c = model;
      SCOPED_TRACE(fmt::format("{} qk_norm {} window {} recompute {}", enum_name(c.model.position),
                               enum_name(c.model.qk_norm), c.model.window, enum_name(recompute)));
      c.parallel.recompute = recompute;
      c.lr.peak = 1e-30;
      c.data.document_mask = true;
      OneRank packed(c);
      const size_t length = 12;
      const std::vector<int32_t> inputs = packed.tokens(0, 0), targets = packed.tokens(0, 1);
      std::vector<int32_t> starts, inputs_alone, targets_alone;
      for (size_t sample = 0; sample < 4; ++sample) {
        size_t start = 0;
        for (const int tokens : kDocumentLengths[sample]) {
          for (size_t t = 0; t < length; ++t) {
            const bool inside = t < static_cast<size_t>(tokens);
            const size_t at = sample * length + std::min(start + t, length - 1);
            if (inside) starts.push_back(static_cast<int32_t>(start));
            inputs_alone.push_back(inside ? inputs[at] : 3);
            targets_alone.push_back(inside ? targets[at] : kNoTarget);
          }
          start += static_cast<size_t>(tokens);
        }
      }
      c.data.document_mask = false;
      c.data.global_batch = static_cast<int>(inputs_alone.size() / length);
      c.data.micro_batch = 1;
      OneRank alone(c);
      const StepResult one = alone.trainer->step({.step = 0, .targets = 48}, inputs_alone, targets_alone);
      const StepResult all = packed.trainer->step({.step = 0, .document_starts = starts}, inputs, targets);
      EXPECT_NEAR(all.loss, one.loss, 1e-6);
      EXPECT_NEAR(all.grad_norm, one.grad_norm, 1e-5 * one.grad_norm);
      const auto expected = alone.gradients();
      for (const auto& [name, values] : packed.gradients())
        for (size_t i = 0; i < values.size(); ++i) EXPECT_NEAR(values[i], expected.at(name)[i], 1e-6) << name;
      EXPECT_NEAR(packed.evaluator->evaluate(inputs, targets, starts), one.loss, 1e-6);
      OneRank without(c);  // a sample of several documents differs from one of a single document
      EXPECT_GT(std::abs(packed.evaluator->evaluate(inputs, targets) - one.loss), 1e-4);
      // A text is one document, whatever training left on the device.
      const std::vector<int32_t> text = {1, 5, 2, 7};
      EXPECT_EQ(packed.evaluator->next_token_logits(text), without.evaluator->next_token_logits(text));
    }
}

// With the mask, samples of one document have the bits of those without it.
TEST(Trainer, samples_of_one_document_change_no_bit) {
  for (Config c : models_with_documents()) {
    OneRank without(c);
    c.data.document_mask = true;
    OneRank with(c);
    c.data.reset_positions = AutoFlag::kFalse;
    OneRank continued(c);
    for (int64_t step = 0; step < 3; ++step) {
      const StepResult a = without.step(step), b = with.step(step), d = continued.step(step);
      EXPECT_EQ(a.loss, b.loss);
      EXPECT_EQ(a.grad_norm, b.grad_norm);
      EXPECT_EQ(a.loss, d.loss);
    }
    EXPECT_EQ(without.weights(), continued.weights());
    if (c.model.position == Position::kRope) {
      EXPECT_EQ(without.weights(), with.weights());
    }
  }
}

TEST(Trainer, positions_count_from_the_document_or_from_the_sample) {
  Config c = models_with_documents().front();
  c.data.document_mask = true;
  OneRank restarted(c);
  c.data.reset_positions = AutoFlag::kFalse;
  OneRank continued(c);
  std::vector<int32_t> starts(48);
  for (size_t i = 0; i < starts.size(); ++i) starts[i] = i % 12 < 5 ? 0 : 5;
  const auto inputs = restarted.tokens(0, 0), targets = restarted.tokens(0, 1);
  EXPECT_GT(std::abs(restarted.evaluator->evaluate(inputs, targets, starts) -
                     continued.evaluator->evaluate(inputs, targets, starts)),
            1e-4);
}

TEST(Trainer, all_tokens_as_targets_change_no_bit) {
  OneRank without(tiny_config()), with(tiny_config());
  for (int64_t step = 0; step < 3; ++step) {
    const StepResult a = without.step(step);
    const StepResult b = with.trainer->step({.step = step, .first_sample = 4 * step, .targets = 24},
                                            with.tokens(step, 0), with.tokens(step, 1));
    EXPECT_EQ(a.loss, b.loss);
    EXPECT_EQ(a.grad_norm, b.grad_norm);
  }
  EXPECT_EQ(without.weights(), with.weights());
}

TEST(Trainer, a_step_without_targets_changes_nothing) {
  OneRank rank(tiny_config());
  rank.step(0);
  const auto before = rank.weights();
  const std::vector<int32_t> none(24, kNoTarget);
  const StepResult result = rank.trainer->step({.step = 1, .first_sample = 4, .targets = 0}, rank.tokens(1, 0), none);
  EXPECT_EQ(result.loss, 0);
  EXPECT_EQ(result.grad_norm, 0);
  EXPECT_TRUE(result.finite());
  EXPECT_TRUE(result.is_spike);
  EXPECT_EQ(rank.weights(), before);
  OneRank other(tiny_config());  // its moments have not changed either
  other.step(0);
  rank.step(2), other.step(2);
  EXPECT_EQ(rank.weights(), other.weights());
  std::vector<int32_t> inputs = rank.tokens(0, 0), targets = none;
  const auto next = [&] { return StepTokens{inputs, targets}; };
  const Evaluation evaluation = rank.evaluator->evaluate({.batches = 1, .samples = 4}, next, nullptr);
  EXPECT_EQ(evaluation.tokens, 0);
  EXPECT_TRUE(std::isnan(evaluation.loss));
}

}  // namespace
}  // namespace tri::test
