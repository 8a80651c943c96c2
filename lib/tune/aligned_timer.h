// Times work that all ranks do together.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "lib/comm/job/job.h"
#include "lib/engine/engine.h"

namespace tri {

class AlignedTimer {
 public:
  // `engine` must have a job. `number` (1) f32: any memory; overwritten.
  AlignedTimer(Engine& engine, Tensor number);

  // Returns this rank's seconds per run for `repeats` runs of `work`, which enqueues on the compute stream. The ranks
  // start together.
  double sample(const std::function<void()>& work, int repeats = 1);
  // Returns, element by element, the slowest rank's value. Collective.
  std::vector<double> slowest(const std::vector<double>& mine);

 private:
  Runtime& runtime_;
  Job& job_;
  Tensor number_;
  std::unique_ptr<Event> begin_, end_;
};

}  // namespace tri
