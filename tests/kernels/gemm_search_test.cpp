// Which algorithm is fastest after warm-up, on a simulated GPU whose times change once it has been busy for long.
#include "kernels/gemm_search.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

namespace tri::test {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

// Microseconds per call of each candidate: on an idle GPU, and once the candidate itself has run for `settle`
// microseconds without interruption.
struct FakeGpu {
  std::vector<double> cold, settled;
  double settle = 0;
  int disturbed_part = -1;  // for each candidate: its timed calls with this number take ten times as long
  std::vector<int> parts = std::vector<int>(cold.size(), 0), calls = std::vector<int>(cold.size(), 0);
  size_t last = 0;
  double busy = 0;  // microseconds of the latest candidate

  std::vector<double> times(size_t always, double warm_up_microseconds) {
    return times_when_warm(cold, always, warm_up_microseconds, [this](size_t i, int count) {
      if (i != last) busy = 0;
      last = i;
      const double microseconds = (busy < settle ? cold : settled)[i] * (parts[i] == disturbed_part ? 10 : 1);
      ++parts[i];
      calls[i] += count;
      busy += std::isfinite(microseconds) ? microseconds * count : 0;
      return microseconds;
    });
  }
};

size_t fastest(const std::vector<double>& times) {
  return static_cast<size_t>(std::min_element(times.begin(), times.end()) - times.begin());
}

TEST(TimesWhenWarm, what_is_fastest_alone_is_not_what_is_fastest_at_the_limit_of_power) {
  FakeGpu gpu{.cold = {1000, 900, 950, 990}, .settled = {1300, 1200, 1100, 1190}, .settle = 40e3};
  const std::vector<double> times = gpu.times(0, 0);
  EXPECT_EQ(times, gpu.settled) << "all are near the fastest, and each is timed at its own steady clock";
  EXPECT_EQ(fastest(times), 2u);
  FakeGpu slow{.cold = {1000, 900}, .settled = {1300, 1350}, .settle = 300e3};
  EXPECT_EQ(slow.times(0, 0)[1], 900) << "needs a longer warm-up";
  FakeGpu warmed{.cold = {1000, 900}, .settled = {1300, 1350}, .settle = 300e3};
  EXPECT_EQ(warmed.times(0, 400e3)[1], 1350) << "which the first one gets";
}

TEST(TimesWhenWarm, only_those_near_the_fastest_and_the_requested_one_are_timed) {
  FakeGpu gpu{.cold = {2000, 1000, 1200, 1140, 3000}, .settled = {2000, 1000, 1200, 1140, 3000}};
  EXPECT_EQ(gpu.times(0, 0), (std::vector<double>{2000, 1000, kInfinity, 1140, kInfinity}));
  EXPECT_EQ(gpu.parts, (std::vector<int>{2, 2 + 7, 0, 2, 0}));
  EXPECT_EQ(gpu.calls, (std::vector<int>{25 + 10, 50 + 20 + 50 + 6 * 20, 0, 43 + 17, 0}))
      << "50 ms and a part of 20; six parts for the fastest";
  // Of many equally good ones, the five that were fastest alone are timed.
  FakeGpu many{.cold = {1007, 1006, 1005, 1004, 1003, 1002, 1001}, .settled = {1, 1, 1, 1, 1, 1, 1}};
  EXPECT_EQ(many.times(0, 0), (std::vector<double>{1, kInfinity, 1, 1, 1, 1, 1}));
}

TEST(TimesWhenWarm, those_close_to_the_fastest_are_timed_in_parts_until_the_fastest_has_been) {
  // The first part of candidate 0 is lucky: candidate 2 is fastest, and 1 is close to neither.
  const std::vector<double> lucky = {990, 1030, 1000}, steady = {1010, 1030, 1000};
  std::vector<int> parts(3, 0);
  const std::vector<double> times = times_when_warm(lucky, 1, 0, [&](size_t i, int) {
    const bool first = ++parts[i] <= 2;
    return (first ? lucky : steady)[i];
  });
  EXPECT_EQ(times, steady);
  EXPECT_EQ(parts, (std::vector<int>{2 + 7, 2, 2 + 7}));
}

TEST(TimesWhenWarm, a_part_that_was_disturbed_does_not_decide) {
  FakeGpu gpu{.cold = {1000, 900}, .settled = {1000, 900}, .disturbed_part = 3};
  EXPECT_EQ(gpu.times(0, 0), (std::vector<double>{1000, 900}));
}

TEST(TimesWhenWarm, what_refuses_is_out) {
  FakeGpu alone{.cold = {kInfinity, 1000, kInfinity}, .settled = {1, 1000, 1}};
  EXPECT_EQ(alone.times(0, 50e3), (std::vector<double>{kInfinity, 1000, kInfinity}));
  EXPECT_EQ(alone.parts[0] + alone.parts[2], 0);
  FakeGpu later{.cold = {kInfinity, 1000, 1000}, .settled = {1, kInfinity, 1100}};
  EXPECT_EQ(later.times(0, 50e3), (std::vector<double>{kInfinity, kInfinity, 1100}));
  FakeGpu all{.cold = {1000, 1000}, .settled = {kInfinity, kInfinity}};
  EXPECT_EQ(all.times(1, 50e3), (std::vector<double>{kInfinity, kInfinity}));
  FakeGpu none{.cold = {kInfinity}, .settled = {1}};
  EXPECT_EQ(none.times(0, 50e3), (std::vector<double>{kInfinity}));
}

}  // namespace
}  // namespace tri::test
