// Accumulates one rank's steps into its statistics of a window.
#pragma once

#include <cstdint>
#include <vector>

#include "io/ranks/rank_times.h"
#include "kernels/core/timeline.h"
#include "lib/observe/metrics/step_times.h"

namespace tri {

// One rank's measurements of a step, in seconds.
struct RankStep {
  const StepTimes& times;           // parts of the wall time
  const Timeline::Times& timeline;  // of the compute stream, with details
  double wall = 0;                  // of the whole step
  double send = 0;                  // its fastest send to a neighbour stage; 0: none
  double before = 0;                // from the end of the previous step until the timeline began
};

class WindowClock {
 public:
  void add(const RankStep& step);
  int64_t steps() const { return static_cast<int64_t>(compute_.size()); }
  // Returns the means of the steps since the last call; needs at least one.
  RankTimes take();

 private:
  std::array<double, kNumRankQuantities> sums_{};
  std::vector<double> compute_, send_, launch_;  // of each step
};

}  // namespace tri
