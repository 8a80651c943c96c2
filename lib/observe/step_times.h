// The time of a step by what it was spent on; the parts add up to the step.
#pragma once

#include <array>
#include <string>

#include "kernels/core/timeline.h"

namespace tri {

struct StepTimes {
  // Seconds. tp, pp, dp: exposed, that is, compute stood still for a transfer. bubble: for a neighbour stage's work.
  // data: for the next batch. other: the host's, between and alongside the device's work.
  double compute = 0, tp = 0, pp = 0, dp = 0, bubble = 0, optimizer = 0, data = 0, other = 0;

  static constexpr int kKinds = 8;
  static const std::array<const char*, kKinds>& names();
  std::array<double, kKinds> values() const { return {compute, tp, pp, dp, bubble, optimizer, data, other}; }
  StepTimes& operator+=(const StepTimes& more);
};

// `transfer`: what a transfer between stages takes by itself; of each wait for a neighbour so much counts as pp, the
// rest as bubble. `wall`, `data`: of the whole step on the host's clock.
StepTimes step_times(const Timeline::Times& times, double transfer, double wall, double data);

// "tp 1.2 pp 0.4 bubble 12.0 ms": what kept compute from working, where there was any of it.
std::string exposed_text(const StepTimes& times);

}  // namespace tri
