// The time of a step by category; the parts add up to the step.
#pragma once

#include <array>
#include <string>
#include <string_view>

#include "kernels/core/timeline.h"

namespace tri {

struct StepTimes {
  // Seconds. tp, cp, ep, pp, dp: exposed, that is, compute waited for a transfer. bubble: compute waited for a
  // neighbour stage's work. data: it waited for the next batch. other: the host's time between and alongside the
  // device's work.
  double compute = 0, tp = 0, cp = 0, ep = 0, pp = 0, dp = 0, bubble = 0, optimizer = 0, data = 0, other = 0;

  static constexpr int kKinds = 10;
  static const std::array<const char*, kKinds>& names();  // exposed waits are named as RankQuantity names them
  std::array<double, kKinds> values() const;
  double of(std::string_view name) const;
  StepTimes& operator+=(const StepTimes& more);
};

// `transfer`: the time of a transfer between stages by itself; of each wait for a neighbour this much counts as pp, the
// rest as bubble. `wall`, `data`: of the whole step on the host's clock.
StepTimes step_times(const Timeline::Times& times, double transfer, double wall, double data);

// Returns what kept compute from working: "tp 1.2 pp 0.4 bubble 12.0 ms"; omits zeros.
std::string exposed_text(const StepTimes& times);

}  // namespace tri
