// Times what all ranks do together.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "lib/comm/job.h"
#include "lib/engine/engine.h"

namespace tri {

class AlignedTimer {
 public:
  // Of an engine with a job. `number` (1) f32: any memory; overwritten.
  AlignedTimer(Engine& engine, Tensor number);

  // This rank's seconds of one of `repeats` runs of `work`, which enqueues on the compute stream. The ranks begin
  // together.
  double sample(const std::function<void()>& work, int repeats = 1);
  // Entry by entry the slowest rank's. Collective.
  std::vector<double> slowest(const std::vector<double>& mine);

 private:
  Runtime& runtime_;
  Job& job_;
  Tensor number_;
  std::unique_ptr<Event> begin_, end_;
};

}  // namespace tri
