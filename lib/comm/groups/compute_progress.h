// The position of the compute stream, written to the rank's flight recorder. Without a flight recorder all calls have
// no effect.
#pragma once

#include "io/flight_recorder/flight_recorder.h"
#include "kernels/core/device.h"

namespace tri {

// One action, which the constructor enqueues.
class ComputeProgress {
 public:
  explicit ComputeProgress(ComputeKind kind, int chunk = 0, int microbatch = 0)
      : recorder_(flight_recorder()),
        number_(recorder_ == nullptr ? 0 : recorder_->enqueue_action(kind, chunk, microbatch)) {}

  // Mark when `compute` reaches this point: entered(), it waits for what the action needs from other stages; running(),
  // it has that. entered() may be skipped if there is nothing to wait for, since each mark costs a GPU's stream
  // microseconds.
  void entered(Stream& compute) const {
    if (recorder_ != nullptr) compute.mark(recorder_->image().action_entered, number_);
  }
  void running(Stream& compute) const {
    if (recorder_ != nullptr) compute.mark(recorder_->image().action_running, number_);
  }

 private:
  FlightRecorder* const recorder_;
  const uint32_t number_;
};

}  // namespace tri
