// Which algorithm is fastest when hot, on a GPU of our own making: its times change once it has been busy for long.
#include "kernels/gemm_search.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

namespace tri::test {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

// Microseconds of a call of each candidate, by whether the GPU is cold or hot; hot after `heat` of work.
struct FakeGpu {
  std::vector<double> cold, hot;
  double heat = 0;
  double busy = 0;
  std::vector<int> turns = std::vector<int>(cold.size(), 0), calls = std::vector<int>(cold.size(), 0);
  // Rounds in which something else disturbs the candidate: its turn is ten times as long.
  int disturbed_turn = -1;

  std::vector<double> times(size_t always, double heat_microseconds) {
    return times_when_hot(cold, always, heat_microseconds, [this](size_t i, int count) {
      const double microseconds = (busy < heat ? cold : hot)[i] * (turns[i] == disturbed_turn ? 10 : 1);
      ++turns[i];
      calls[i] += count;
      busy += std::isfinite(microseconds) ? microseconds * count : 0;
      return microseconds;
    });
  }
};

size_t fastest(const std::vector<double>& times) {
  return static_cast<size_t>(std::min_element(times.begin(), times.end()) - times.begin());
}

TEST(TimesWhenHot, what_is_fastest_alone_is_not_what_is_fastest_when_hot) {
  FakeGpu gpu{.cold = {1000, 900, 950, 990}, .hot = {1300, 1200, 1100, 1190}, .heat = 100e3};
  const std::vector<double> times = gpu.times(0, 100e3);
  EXPECT_EQ(times, gpu.hot) << "all near, and none timed before the GPU was hot";
  EXPECT_EQ(fastest(times), 2u);
  FakeGpu resting{.cold = {1000, 900, 950, 990}, .hot = {1300, 1200, 1100, 1190}, .heat = 1e9};
  EXPECT_EQ(fastest(resting.times(0, 100e3)), 1u) << "the same on a GPU that heat does not slow";
}

TEST(TimesWhenHot, only_those_near_the_fastest_are_timed_and_the_one_asked_for) {
  FakeGpu gpu{.cold = {2000, 1000, 1200, 1140, 3000}, .hot = {2000, 1000, 1200, 1140, 3000}};
  EXPECT_EQ(gpu.times(0, 0), (std::vector<double>{2000, 1000, kInfinity, 1140, kInfinity}));
  EXPECT_EQ(gpu.turns, (std::vector<int>{3, 3, 0, 3, 0}));
  EXPECT_EQ(gpu.calls, (std::vector<int>{18, 36, 0, 30, 0})) << "12 ms a turn";
  // Of many that are as good, the five that were fastest alone.
  FakeGpu many{.cold = {1007, 1006, 1005, 1004, 1003, 1002, 1001}, .hot = {1, 1, 1, 1, 1, 1, 1}};
  EXPECT_EQ(many.times(0, 0), (std::vector<double>{1, kInfinity, 1, 1, 1, 1, 1}));
}

TEST(TimesWhenHot, a_turn_that_was_disturbed_does_not_decide) {
  FakeGpu gpu{.cold = {1000, 900}, .hot = {1000, 900}, .disturbed_turn = 1};
  EXPECT_EQ(gpu.times(0, 0), (std::vector<double>{1000, 900}));
}

TEST(TimesWhenHot, what_refuses_is_out) {
  FakeGpu alone{.cold = {kInfinity, 1000, kInfinity}, .hot = {1, 1000, 1}};
  EXPECT_EQ(alone.times(0, 50e3), (std::vector<double>{kInfinity, 1000, kInfinity}));
  EXPECT_EQ(alone.turns[0] + alone.turns[2], 0);
  FakeGpu later{.cold = {1000, 1000}, .hot = {kInfinity, 1100}};
  EXPECT_EQ(later.times(0, 50e3), (std::vector<double>{kInfinity, 1100}));
  EXPECT_EQ(later.turns[0], 1) << "once is enough";
  FakeGpu all{.cold = {1000, 1000}, .hot = {kInfinity, kInfinity}};
  EXPECT_EQ(all.times(1, 50e3), (std::vector<double>{kInfinity, kInfinity}));
  FakeGpu none{.cold = {kInfinity}, .hot = {1}};
  EXPECT_EQ(none.times(0, 50e3), (std::vector<double>{kInfinity}));
}

}  // namespace
}  // namespace tri::test
