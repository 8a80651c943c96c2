// Cross-entropy on the CPU: against float64, and split over ranks against one rank.
#include <algorithm>

#include "kernels/core/dims.h"
#include "kernels/cpu/ops.h"
#include "kernels/no_target.h"
#include "tests/kernels/op_test.h"

namespace tri::test {
namespace {

constexpr float kGradScale = 0.25f;
constexpr float kLossBefore = 2.0f;  // the loss is added to it

// sum_r lse + z_loss · lse² - logits[r, target],  lse = log(sum_c exp(logits[r, c])), after the softcap
double reference_loss(Values logits, const Values& targets, double z_loss = 0, double softcap = 0) {
  if (softcap > 0)
    for (double& logit : logits) logit = softcap * std::tanh(logit / softcap);
  const size_t vocab = logits.size() / targets.size();
  double loss = 0;
  for (size_t r = 0; r < targets.size(); ++r) {
    const double* row = &logits[r * vocab];
    const double largest = *std::max_element(row, row + vocab);
    double sum = 0;
    for (size_t c = 0; c < vocab; ++c) sum += std::exp(row[c] - largest);
    const double lse = largest + std::log(sum);
    loss += lse + z_loss * lse * lse - row[static_cast<size_t>(targets[r])];
  }
  return loss;
}

Values reference_gradient(const Values& logits, const Values& targets) {
  const size_t vocab = logits.size() / targets.size();
  Values gradient;
  for (size_t r = 0; r < targets.size(); ++r) {
    const double* row = &logits[r * vocab];
    const double largest = *std::max_element(row, row + vocab);
    double sum = 0;
    for (size_t c = 0; c < vocab; ++c) sum += std::exp(row[c] - largest);
    for (size_t c = 0; c < vocab; ++c) {
      const double onehot = c == static_cast<size_t>(targets[r]) ? 1 : 0;
      gradient.push_back((std::exp(row[c] - largest) / sum - onehot) * kGradScale);
    }
  }
  return gradient;
}

struct Outcome {
  Values stats;     // (tp, R, 3)
  double loss = 0;  // without kLossBefore
  Values gradient;  // (R, vocab), assembled from the ranks' parts
  Values padding;   // contents of the gradient's padded columns
};

// Runs tp ranks on logits (R, vocab), each rank `width` columns wide. Padding holds NaN.
Outcome run_split(const Values& logits, const Values& targets, int tp, int64_t width, Dtype dtype = Dtype::kF32,
                  float z_loss = 0, float softcap = 0) {
  const int64_t rows = static_cast<int64_t>(targets.size()), vocab = static_cast<int64_t>(logits.size()) / rows;
  const Buffer target_buffer(Dtype::kI32, {rows}, targets);
  const Buffer stats(Dtype::kF32, {tp, rows, 3});
  std::vector<Buffer> parts;
  for (int k = 0; k < tp; ++k) {
    Values part(rows * width, NAN);
    for (int64_t r = 0; r < rows; ++r) {
      for (int64_t c = 0; c < width && k * width + c < vocab; ++c)
        part[r * width + c] = logits[r * vocab + k * width + c];
    }
    parts.emplace_back(dtype, std::initializer_list<int64_t>{rows, width}, part);
    run_checked(cpu::cross_entropy_stats, {.stats = Tensor(stats).rows(k, 1).view({rows, 3}),
                                           .logits = parts.back(),
                                           .targets = target_buffer,
                                           .first_token = static_cast<int>(k * width),
                                           .vocab = static_cast<int>(vocab),
                                           .softcap = softcap});
  }
  Outcome outcome{stats.values(), 0, Values(rows * vocab, NAN), {}};
  for (int k = 0; k < tp; ++k) {
    const Buffer loss(Dtype::kF32, {1}, {kLossBefore});
    run_checked(cpu::cross_entropy_loss, {.loss = loss,
                                          .logits = parts[k],
                                          .stats = stats,
                                          .targets = target_buffer,
                                          .first_token = static_cast<int>(k * width),
                                          .vocab = static_cast<int>(vocab),
                                          .grad_scale = kGradScale,
                                          .z_loss = z_loss,
                                          .softcap = softcap});
    const double own_loss = loss.values()[0] - kLossBefore;
    if (k == 0) outcome.loss = own_loss;
    EXPECT_TRUE(own_loss == outcome.loss || (std::isnan(own_loss) && std::isnan(outcome.loss)))
        << "rank " << k << " has loss " << own_loss << ", rank 0 " << outcome.loss;
    const Values part = parts[k].values();
    for (int64_t i = 0; i < rows * width; ++i) {
      const int64_t column = k * width + i % width;
      if (column < vocab) outcome.gradient[i / width * vocab + column] = part[i];
      if (column >= vocab) outcome.padding.push_back(part[i]);
    }
  }
  return outcome;
}

struct Shape {
  int64_t rows, vocab;
  std::string text() const { return fmt::format("{} rows, vocabulary of {}", rows, vocab); }
};
const std::vector<Shape> kShapes = {{1, 1}, {1, 5}, {3, 2}, {17, 5}, {3, 127}, {2, 513}, {17, 1000}, {5, 50257}};

Values logits_of(const Shape& s) { return random_values(s.rows * s.vocab, "logits", 3.0); }
Values targets_of(const Shape& s) { return random_integers(s.rows, s.vocab, "targets"); }

TEST(CrossEntropy, loss_and_gradient_match_float64) {
  for (const Shape& s : kShapes) {
    SCOPED_TRACE(s.text());
    const Outcome outcome = run_split(logits_of(s), targets_of(s), 1, s.vocab);
    const double expected = reference_loss(logits_of(s), targets_of(s));
    EXPECT_NEAR(outcome.loss, expected, 1e-6 * (kLossBefore + expected));
    expect_close("gradient", outcome.gradient, reference_gradient(logits_of(s), targets_of(s)), 1e-6);
    if (HasFatalFailure()) return;
  }
}

TEST(CrossEntropy, gradient_matches_finite_differences) {
  for (const Shape& s : kShapes) {
    SCOPED_TRACE(s.text());
    Values logits = logits_of(s);
    const Outcome outcome = run_split(logits, targets_of(s), 1, s.vocab);
    expect_gradient("logits", outcome.gradient, logits,
                    [&] { return kGradScale * reference_loss(logits, targets_of(s)); });
    if (HasFatalFailure()) return;
  }
}

TEST(CrossEntropy, z_loss_changes_the_gradient_alone) {
  constexpr float kZLoss = 0.05f;
  for (const Shape& s : kShapes)
    for (const int tp : {1, 2}) {
      SCOPED_TRACE(fmt::format("{}, tp {}", s.text(), tp));
      Values logits = logits_of(s);
      const int64_t width = ceil_div(s.vocab, tp);
      const Outcome outcome = run_split(logits, targets_of(s), tp, width, Dtype::kF32, kZLoss);
      EXPECT_EQ(outcome.loss, run_split(logits, targets_of(s), tp, width).loss);
      expect_gradient("logits", outcome.gradient, logits,
                      [&] { return kGradScale * reference_loss(logits, targets_of(s), kZLoss); });
      if (HasFatalFailure()) return;
    }
}

// Of logits up to 3: the smaller cap saturates.
TEST(CrossEntropy, softcap_matches_finite_differences_of_float64_in_any_split) {
  for (const Shape& s : kShapes)
    for (const auto& [softcap, z_loss] : {std::pair{4.0f, 0.0f}, {1.0f, 0.05f}})
      for (const int tp : {1, 2}) {
        SCOPED_TRACE(fmt::format("{}, tp {}, softcap {}, z-loss {}", s.text(), tp, softcap, z_loss));
        Values logits = logits_of(s);
        const Values targets = targets_of(s);
        const Outcome outcome = run_split(logits, targets, tp, ceil_div(s.vocab, tp), Dtype::kF32, z_loss, softcap);
        const double expected = reference_loss(logits, targets, 0, softcap);
        EXPECT_NEAR(outcome.loss, expected, 1e-6 * (kLossBefore + expected));
        expect_gradient("logits", outcome.gradient, logits,
                        [&, z = z_loss, c = softcap] { return kGradScale * reference_loss(logits, targets, z, c); });
        if (HasFatalFailure()) return;
      }
}

TEST(CrossEntropy, softcap_without_gradient_keeps_the_logits_and_takes_bf16) {
  const Shape s{3, 127};
  for (const Dtype dtype : {Dtype::kF32, Dtype::kBF16}) {
    const Buffer logits(dtype, {3, 127}, logits_of(s)), kept = logits, targets(Dtype::kI32, {3}, targets_of(s)),
                                                        loss(Dtype::kF32, {1}, {0.0});
    cpu::cross_entropy_loss({.loss = loss,
                             .logits = logits,
                             .targets = targets,
                             .vocab = 127,
                             .gradient = LogitGradient::kNone,
                             .softcap = 2});
    EXPECT_TRUE(logits.same_bits(kept));
    const double expected = reference_loss(kept.values(), targets_of(s), 0, 2);
    EXPECT_NEAR(loss.values()[0], expected, 1e-6 * expected);
  }
}

TEST(CrossEntropy, split_over_ranks_equals_one_rank) {
  for (const Shape& s : kShapes) {
    const Outcome full = run_split(logits_of(s), targets_of(s), 1, s.vocab);
    for (const int tp : {1, 2, 3, 4}) {
      // Just wide enough, and padded to kVocabMultiple columns: then the last ranks have only padding.
      for (const int64_t width : {ceil_div(s.vocab, tp), round_up(ceil_div(s.vocab, tp), kVocabMultiple)}) {
        SCOPED_TRACE(fmt::format("{}, {} ranks of {} columns", s.text(), tp, width));
        const Outcome split = run_split(logits_of(s), targets_of(s), tp, width);
        EXPECT_NEAR(split.loss, full.loss, 1e-6 * (kLossBefore + full.loss));
        expect_close("gradient", split.gradient, full.gradient, 1e-6);
        EXPECT_EQ(split.padding, Values(s.rows * (tp * width - s.vocab), 0.0));
        if (HasFatalFailure()) return;
      }
    }
  }
}

TEST(CrossEntropy, a_row_without_a_target_counts_nowhere_in_any_split) {
  const Shape shape{6, 127};
  const Values logits = logits_of(shape), targets = targets_of(shape);
  Values kept_logits, kept_targets, some = targets;
  for (size_t r = 0; r < 6; ++r) {
    if (r % 3 == 2) {
      some[r] = kNoTarget;
      continue;
    }
    kept_targets.push_back(targets[r]);
    kept_logits.insert(kept_logits.end(), logits.begin() + static_cast<int64_t>(r) * 127,
                       logits.begin() + static_cast<int64_t>(r + 1) * 127);
  }
  const double expected = reference_loss(kept_logits, kept_targets);
  const Values gradient = reference_gradient(logits, targets);
  for (const int tp : {1, 2, 3}) {
    SCOPED_TRACE(fmt::format("{} ranks", tp));
    const Outcome outcome = run_split(logits, some, tp, ceil_div(shape.vocab, tp));
    EXPECT_NEAR(outcome.loss, expected, 1e-6 * (kLossBefore + expected));
    for (size_t i = 0; i < gradient.size(); ++i)
      EXPECT_NEAR(outcome.gradient[i], i / 127 % 3 == 2 ? 0 : gradient[i], 1e-6) << "element " << i;
  }
}

TEST(CrossEntropy, stats_are_max_sum_and_target_logit_of_the_own_columns) {
  const float ln2 = std::log(2.0f);
  const Outcome outcome = run_split({1, 1 - ln2, 1 - ln2, -4, 7}, {2}, 3, 2);
  const Values expected = {1, 1.5, -INFINITY, 1 - ln2, 1 + std::exp(-5 + ln2), 1 - ln2, 7, 1, -INFINITY};
  ASSERT_EQ(outcome.stats.size(), expected.size());
  for (size_t i = 0; i < expected.size(); ++i) EXPECT_FLOAT_EQ(outcome.stats[i], expected[i]) << "stats[" << i << "]";
}

TEST(CrossEntropy, rank_of_padding_alone_has_neutral_stats) {
  const Outcome outcome = run_split({3, 4}, {1}, 2, 2);
  EXPECT_EQ(outcome.stats[3], -INFINITY);
  EXPECT_EQ(outcome.stats[4], 0);
  EXPECT_EQ(outcome.stats[5], -INFINITY);
}

TEST(CrossEntropy, logits_beyond_the_range_of_exp_match_float64) {
  Values logits = random_values(4 * 300, "logits", 500.0);
  for (size_t i = 0; i < logits.size(); ++i) logits[i] += i < 600 ? 8192 : -8192;
  for (double& logit : logits) logit = static_cast<float>(logit);
  const Values targets = {0, 10, 150, 299};
  for (const int tp : {1, 4}) {
    const Outcome outcome = run_split(logits, targets, tp, 300 / tp);
    const double expected = reference_loss(logits, targets);
    EXPECT_NEAR(outcome.loss, expected, 1e-6 * expected);
    expect_close("gradient", outcome.gradient, reference_gradient(logits, targets), 1e-6);
  }
}

TEST(CrossEntropy, minus_infinity_is_a_probability_of_zero_in_any_split) {
  const Values logits = {-INFINITY, -INFINITY, 1, 2}, targets = {3};
  for (const int tp : {1, 2, 4}) {
    const Outcome outcome = run_split(logits, targets, tp, 4 / tp);
    EXPECT_NEAR(outcome.loss, std::log(1 + std::exp(-1.0)), 1e-6) << tp << " ranks";
    expect_close("gradient", outcome.gradient, reference_gradient(logits, targets), 1e-6);
  }
}

TEST(CrossEntropy, nan_and_overflow_reach_the_loss_in_any_split) {
  for (const double bad : {double{NAN}, double{INFINITY}}) {
    for (int64_t column : {0, 3, 39}) {
      Values logits = random_values(40, "logits");
      logits[column] = bad;
      for (const int tp : {1, 2, 4}) {
        EXPECT_TRUE(std::isnan(run_split(logits, {7}, tp, 40 / tp).loss)) << bad << " in " << column << ", tp " << tp;
      }
    }
  }
}

TEST(CrossEntropy, bf16_storage_matches_fp32) {
  for (const Shape& s : kShapes) {
    SCOPED_TRACE(s.text());
    const Outcome half = run_split(logits_of(s), targets_of(s), 2, ceil_div(s.vocab, 2), Dtype::kBF16);
    const Outcome full = run_split(logits_of(s), targets_of(s), 2, ceil_div(s.vocab, 2));
    EXPECT_EQ(half.loss, full.loss);  // the same logits, widened
    expect_close("gradient", half.gradient, full.gradient, kBf16Tolerance);
    if (HasFatalFailure()) return;
  }
}

TEST(CrossEntropy, runs_are_bit_identical) {
  const Shape s{17, 1000};
  const Outcome first = run_split(logits_of(s), targets_of(s), 2, 512),
                second = run_split(logits_of(s), targets_of(s), 2, 512);
  EXPECT_EQ(first.loss, second.loss);
  EXPECT_EQ(first.stats, second.stats);
  EXPECT_EQ(first.gradient, second.gradient);
}

TEST(CrossEntropy, without_gradient_the_logits_stay) {
  const Shape s{3, 127};
  const Buffer logits(Dtype::kF32, {3, 127}, logits_of(s)), kept = logits, targets(Dtype::kI32, {3}, targets_of(s));
  const Buffer stats(Dtype::kF32, {1, 3, 3}), loss(Dtype::kF32, {1}, {0.0});
  cpu::cross_entropy_stats(
      {.stats = Tensor(stats).view({3, 3}), .logits = logits, .targets = targets, .first_token = 0, .vocab = 127});
  cpu::cross_entropy_loss({.loss = loss,
                           .logits = logits,
                           .stats = stats,
                           .targets = targets,
                           .first_token = 0,
                           .vocab = 127,
                           .gradient = LogitGradient::kNone});
  EXPECT_TRUE(logits.same_bits(kept));
  const double expected = reference_loss(logits_of(s), targets_of(s));
  EXPECT_NEAR(loss.values()[0], expected, 1e-6 * expected);
}

TEST(CrossEntropy, target_outside_the_vocabulary_is_refused) {
  EXPECT_THROW(run_split({1, 2, 3}, {3}, 1, 4), Fatal);
  EXPECT_THROW(run_split({1, 2, 3}, {-2}, 1, 4), Fatal);
}

TEST(CrossEntropy, check_refuses_wrong_operands) {
  const Buffer logits(Dtype::kF32, {3, 8}), targets(Dtype::kI32, {3}), stats(Dtype::kF32, {3, 3}),
      loss(Dtype::kF32, {1});
  const CrossEntropyStats good{.stats = stats, .logits = logits, .targets = targets, .first_token = 0, .vocab = 8};
  EXPECT_NO_THROW(check(good));
  CrossEntropyStats bad = good;
  bad.stats = Tensor(stats).view({1, 3, 3});
  EXPECT_THROW(check(bad), Fatal);
  bad = good;
  bad.targets.dtype = Dtype::kF32;
  EXPECT_THROW(check(bad), Fatal);
  bad = good;
  bad.vocab = 0;
  EXPECT_THROW(check(bad), Fatal);
  const CrossEntropyLoss flat{
      .loss = loss, .logits = logits, .stats = stats, .targets = targets, .first_token = 0, .vocab = 8};
  EXPECT_THROW(check(flat), Fatal);  // stats lack the tp dimension
}

}  // namespace
}  // namespace tri::test
