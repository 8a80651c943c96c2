// Where the compute stream is, kept in the rank's flight recorder as ChannelProgress keeps it of transfers. Without a
// flight recorder nothing.
#pragma once

#include "io/flight_recorder/flight_recorder.h"
#include "kernels/core/device.h"

namespace tri {

// One action, enqueued now.
class ComputeProgress {
 public:
  explicit ComputeProgress(ComputeKind kind, int chunk = 0, int microbatch = 0)
      : recorder_(flight_recorder()),
        number_(recorder_ == nullptr ? 0 : recorder_->enqueue_action(kind, chunk, microbatch)) {}

  // As `compute` comes past here: it waits for what the action needs of other stages; it has that. entered() may be
  // left out where there is nothing to wait for: each mark costs a GPU's stream microseconds.
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
