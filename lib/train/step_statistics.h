// The numbers that ranks sum in a step: loss and gradient norm, and reports and requests of the ranks, which need no
// separate collective.
#pragma once

#include <cstddef>

#include "kernels/core/tensor.h"

namespace tri {

// Before the sum these are this rank's numbers, afterwards the sums, the same on all ranks. On the device: as many f32
// in this order.
struct StepStatistics {
  float norm_sq = 0;  // squared norm of the gradients, before clipping; filled in by the step
  float loss = 0;     // mean over the step's targets, nats; filled in by the step
  // Numbers of ranks, of which each adds 1 or 0.
  float stop = 0;    // this rank has received a stop signal
  float saved = 0;   // this rank's part of the checkpoint in progress is saved
  float failed = 0;  // ... or has failed
  // With loss masks: the targets of the next step that this rank counts; without: zero. The number of elements never
  // changes, since the bits of NCCL's sums may depend on it.
  float next_targets = 0;
  float time_needed = 0;  // measured seconds until the state after this step would be saved; only rank 0's
  float requests = 0;     // flags and counts that rank 0 sends to all ranks: pack_requests()

  int num_saved() const { return static_cast<int>(saved); }
  int num_failed() const { return static_cast<int>(failed); }
  // `save_due`: checkpoint.every_minutes have passed by rank 0's clock. `steps_to_record`: how many steps after this
  // one to record (a float is exact for whole numbers up to a million).
  static float pack_requests(bool save_due, int steps_to_record) {
    return static_cast<float>((save_due ? 1 : 0) + 2 * steps_to_record);
  }
  bool save_due() const { return static_cast<int>(requests) % 2 == 1; }
  int steps_to_record() const { return static_cast<int>(requests) / 2; }
};
inline constexpr int kNumStepStatistics = sizeof(StepStatistics) / sizeof(float);

// Returns the element of the (kNumStepStatistics) f32 on the device that has the byte offset `offset` in
// StepStatistics.
inline Tensor step_statistic(const Tensor& statistics, size_t offset) {
  return statistics.flat(static_cast<int64_t>(offset / sizeof(float)), 1);
}

}  // namespace tri
