// Steps that become longer are detected, with the part that grew; clean steps raise nothing.
#include "lib/observe/ranks/drift.h"

#include <gtest/gtest.h>

#include "tests/observe/synthetic_ranks.h"

namespace tri {
namespace {

constexpr int kEvery = 50;

// Which parts grow by how many seconds, at a step.
struct Growths {
  std::function<double(int64_t)> compute = nullptr, dp = nullptr, data = nullptr, spread = nullptr;
};
double at(const std::function<double(int64_t)>& growth, int64_t step) { return growth ? growth(step) : 0; }

// A run of `steps` steps of one second on 8 ranks.
struct Outcome {
  std::vector<Drift> found;
  int64_t first = 0;  // the step at which the first drift was found
};
Outcome play(int64_t steps, double noise, uint64_t seed, const Growths& growths,
             DriftWatch::Step (*change)(DriftWatch::Step) = nullptr) {
  const RankMesh mesh = synthetic_mesh(2, 2, 2);
  DriftWatch watch;
  Draws draws(seed);
  Outcome outcome;
  double wander = 0;  // noise that lasts for some steps
  for (int64_t step = 1; step <= steps; ++step) {
    wander = 0.95 * wander + 0.1 * noise * draws.normal();
    double seconds =
        1 + at(growths.compute, step) + at(growths.dp, step) + at(growths.data, step) + at(growths.spread, step);
    seconds *= std::exp(noise * draws.normal() + wander);
    if (step == 1) seconds *= 20;
    if (draws.uniform() < 0.01) seconds *= 3;
    DriftWatch::Step one{
        .step = step,
        .seconds = seconds,
        .loss = (2 + 8 * std::exp(-static_cast<double>(step) / 300)) * (1 + 0.02 * draws.normal()),
        .grad_norm = (0.4 + 3 * std::exp(-static_cast<double>(step) / 200)) * std::exp(0.3 * draws.normal()),
        .mfu = 0.5 / seconds,
        .checkpoint = step % 400 > 370};
    if (one.checkpoint) one.seconds *= 1.01;
    if (change != nullptr) one = change(one);
    for (Drift& drift : watch.add(one)) {
      if (outcome.found.empty()) outcome.first = step;
      outcome.found.push_back(std::move(drift));
    }
    if (step % kEvery != 0) continue;
    RankWindow window{
        .first_step = step - kEvery + 1, .last_step = step, .time = 0, .ranks = std::vector<RankTimes>(8)};
    for (size_t rank = 0; rank < 8; ++rank) {
      RankTimes& times = window.ranks[rank];
      const double compute = 0.7 + (rank >= 4 ? at(growths.compute, step) : 0);
      times[RankQuantity::kForward] = static_cast<float>(compute / 3);
      times[RankQuantity::kBackward] = static_cast<float>(compute * 2 / 3);
      times[RankQuantity::kBubble] = static_cast<float>(0.1 + (rank < 4 ? at(growths.compute, step) : 0));
      times[RankQuantity::kDp] = static_cast<float>(0.05 + at(growths.dp, step) + at(growths.spread, step));
      times[RankQuantity::kData] = static_cast<float>(at(growths.data, step));
      times[RankQuantity::kLaunch] = 0.6f;
      times[RankQuantity::kLaunchSpread] = static_cast<float>(0.01 + at(growths.spread, step));
    }
    watch.add(mesh, window);
  }
  return outcome;
}

double growing(int64_t step, double by) { return by * std::clamp(static_cast<double>(step - 1000) / 500, 0.0, 1.0); }

TEST(Drift, ten_thousand_clean_steps_raise_nothing) {
  for (const double noise : {0.002, 0.01, 0.03, 0.1})
    for (const uint64_t seed : {1, 2, 3}) {
      const Outcome outcome = play(10000, noise, seed, {});
      for (const Drift& drift : outcome.found) ADD_FAILURE() << "noise " << noise << ": " << to_string(drift);
    }
}

TEST(Drift, a_growth_of_3_percent_over_500_steps_is_found_with_the_part_that_grew) {
  const auto three = [](int64_t step) { return growing(step, 0.03); };
  const struct {
    Growths growths;
    const char* part;
  } cases[] = {{{.compute = three}, "compute of stage 1"},
               {{.dp = three}, "dp transfers"},
               {{.data = three}, "data"},
               {{.spread = three}, "launch skew of the reduce-scatter"}};
  for (const auto& c : cases)
    for (const double noise : {0.002, 0.01}) {
      const Outcome outcome = play(3000, noise, 5, c.growths);
      ASSERT_EQ(outcome.found.size(), 1u) << c.part << " noise " << noise;
      const Drift& drift = outcome.found[0];
      EXPECT_EQ(drift.quantity, "step time");
      EXPECT_LE(outcome.first, 1000 + 600) << c.part;
      EXPECT_GE(drift.since, 950) << to_string(drift);
      EXPECT_LE(drift.since, 1400) << to_string(drift);
      EXPECT_EQ(drift.part, c.part) << to_string(drift);
      EXPECT_GT(drift.growth, 0.02);
      EXPECT_LT(drift.growth, 0.035);
      EXPECT_TRUE(drift.mfu.has_value());
    }
}

TEST(Drift, slower_steps_during_growing_checkpoints_are_due_to_the_checkpoints) {
  const auto slower = [](DriftWatch::Step step) {
    step.checkpoint = step.step % 10 != 0 && step.step > 1000;
    if (step.checkpoint) step.seconds *= 1.1;
    return step;
  };
  const Outcome outcome = play(2000, 0.01, 5, {}, slower);
  ASSERT_EQ(outcome.found.size(), 1u);
  EXPECT_EQ(outcome.found[0].part, "checkpoint") << to_string(outcome.found[0]);
}

TEST(Drift, a_loss_that_rises_and_a_norm_that_grows_are_reported_once) {
  const auto diverging = [](DriftWatch::Step step) {
    if (step.step > 3000) step.loss *= 1.2, step.grad_norm *= 8;
    if (step.step == 700) step.loss = NAN;
    return step;
  };
  const Outcome outcome = play(6000, 0.01, 5, {}, diverging);
  ASSERT_EQ(outcome.found.size(), 2u);
  for (const Drift& drift : outcome.found) {
    EXPECT_NE(drift.quantity, "step time");
    EXPECT_NEAR(static_cast<double>(drift.since), 3000, 60) << to_string(drift);
  }
  EXPECT_NE(outcome.found[0].quantity, outcome.found[1].quantity);
}

}  // namespace
}  // namespace tri
