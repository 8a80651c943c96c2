// Times what all ranks do together.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "lib/comm/job.h"
#include "lib/train/runtime.h"

namespace tri {

class AlignedTimer {
 public:
  // `number` (1) f32, `gate` (1) i32: any memory; overwritten.
  AlignedTimer(Runtime& runtime, Job& job, Device& device, Tensor number, Tensor gate);
  ~AlignedTimer();

  // This rank's seconds of one of `repeats` runs of `work`, which enqueues on the compute stream. The ranks begin
  // together, and when all of it is enqueued: as in a step, whose host is far ahead.
  double sample(const std::function<void()>& work, int repeats = 1);
  // Entry by entry the slowest rank's. Collective.
  std::vector<double> slowest(const std::vector<double>& mine);

 private:
  Runtime& runtime_;
  Job& job_;
  Tensor number_;
  Tensor gate_;
  uint32_t opened_ = 0;
  std::unique_ptr<Stream> opener_;
  std::unique_ptr<Event> begin_, end_;
};

}  // namespace tri
