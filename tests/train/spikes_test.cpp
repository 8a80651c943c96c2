// The limits above which a step is a spike.
#include "lib/train/spikes.h"

#include <gtest/gtest.h>

#include <cmath>

namespace tri::test {
namespace {

TEST(SpikeWindow, limits_are_the_mean_and_deviations_of_the_last_steps) {
  SpikeWindow window(6, {});
  for (size_t step = 0; step < 300; ++step) {
    const StepLimits limits = window.limits();
    if (step < SpikeWindow::kLeast) {
      EXPECT_TRUE(std::isinf(limits.loss) && std::isinf(limits.grad_norm));
    } else {
      // The losses are 0, 1, ...: the mean and the variance of n consecutive integers have closed forms.
      const double n = static_cast<double>(std::min(step, SpikeWindow::kSteps));
      const double mean = static_cast<double>(step) - (n + 1) / 2, deviation = std::sqrt(n * (n + 1) / 12);
      EXPECT_NEAR(limits.loss, mean + 6 * deviation, 1e-3);
      EXPECT_NEAR(limits.grad_norm, 10 * (mean + 6 * deviation), 1e-2);
      EXPECT_FALSE(limits.exceeded_by(limits.loss, limits.grad_norm));
      EXPECT_TRUE(limits.exceeded_by(std::nextafter(limits.loss, INFINITY), 0));
      EXPECT_TRUE(limits.exceeded_by(0, std::nextafter(limits.grad_norm, INFINITY)));
    }
    window.add(static_cast<float>(step), 10 * static_cast<float>(step));
  }
}

TEST(SpikeWindow, continues_from_its_values) {
  SpikeWindow whole(2, {}), begin(2, {});
  for (int step = 0; step < 200; ++step) {
    const auto loss = static_cast<float>(std::sin(step)), norm = static_cast<float>(std::cos(step));
    whole.add(loss, norm);
    if (step < 150) begin.add(loss, norm);
  }
  SpikeWindow resumed(2, begin.values());
  for (int step = 150; step < 200; ++step)
    resumed.add(static_cast<float>(std::sin(step)), static_cast<float>(std::cos(step)));
  EXPECT_EQ(resumed.values(), whole.values());
  EXPECT_EQ(resumed.limits().loss, whole.limits().loss);
  EXPECT_EQ(whole.values().size(), 2 * SpikeWindow::kSteps);
}

TEST(SpikeWindow, has_no_limits_and_no_values_when_it_is_off) {
  SpikeWindow window(0, std::vector<float>(2 * SpikeWindow::kSteps, 1.0f));
  window.add(1, 1);
  EXPECT_TRUE(window.values().empty());
  EXPECT_FALSE(window.limits().exceeded_by(1e30f, 1e30f));
}

}  // namespace
}  // namespace tri::test
