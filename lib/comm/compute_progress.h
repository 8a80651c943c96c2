// Where the compute stream is, kept in the rank's black box as ChannelProgress keeps it of transfers. Without a box
// nothing.
#pragma once

#include "io/black_box/black_box.h"
#include "kernels/core/device.h"

namespace tri {

// One action, enqueued now.
class ComputeProgress {
 public:
  explicit ComputeProgress(ComputeKind kind, int chunk = 0, int microbatch = 0)
      : box_(black_box()), number_(box_ == nullptr ? 0 : box_->enqueue_action(kind, chunk, microbatch)) {}

  // As `compute` comes past here: it waits for what the action needs of other stages; it has that. entered() may be
  // left out where there is nothing to wait for: each mark costs a GPU's stream microseconds.
  void entered(Stream& compute) const {
    if (box_ != nullptr) compute.mark(box_->image().action_entered, number_);
  }
  void running(Stream& compute) const {
    if (box_ != nullptr) compute.mark(box_->image().action_running, number_);
  }

 private:
  BlackBox* const box_;
  const uint32_t number_;
};

}  // namespace tri
