// Which steps are spikes: their loss or gradient norm is far above that of the steps before them
// (optimizer.skip_spikes).
#pragma once

#include <cstddef>
#include <vector>

#include "lib/optim/optimizer.h"

namespace tri {

// The losses and gradient norms of the last steps, and the limits that follow for the next one: the mean plus
// `deviations` sample standard deviations. Skipped steps count, so that a lasting change becomes normal.
class SpikeWindow {
 public:
  static constexpr size_t kSteps = 128, kLeast = 64;  // there are no limits before kLeast steps

  // `values`: of an earlier window. deviations 0: there are no limits, and no values.
  SpikeWindow(double deviations, std::vector<float> values);

  StepLimits limits() const;
  // Adds a step with finite numbers.
  void add(float loss, float grad_norm);
  // Returns loss and gradient norm of each step, the oldest first.
  const std::vector<float>& values() const { return values_; }

 private:
  float limit(size_t first) const;

  const double deviations_;
  std::vector<float> values_;
};

}  // namespace tri
