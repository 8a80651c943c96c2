// The numbers that ranks sum in a step: loss and gradient norm, and what the ranks tell each other, for which no
// collective of its own is needed.
#pragma once

#include <cstddef>

#include "kernels/core/tensor.h"

namespace tri {

// Before the sum this rank's, afterwards the same on all ranks. On the device: as many f32 in this order.
struct StepStatistics {
  float norm_sq = 0;  // squared norm of the gradients, before clipping; filled in by the step
  float loss = 0;     // mean over the step's tokens, nats; filled in by the step
  // Ranks of which each is true: 1 or 0 a rank.
  float stop = 0;         // this rank has received a stop signal
  float saved = 0;        // this rank's part of the checkpoint under way is done
  float failed = 0;       // ... or could not be
  float unused = 0;       // zero: the bits of NCCL's sums may depend on how many numbers there are, and in which order
  float time_needed = 0;  // seconds until the state after this step would be saved, by what was measured; rank 0 alone
  float requests = 0;     // flags and counts that rank 0 sends to all ranks: pack_requests()

  int num_saved() const { return static_cast<int>(saved); }
  int num_failed() const { return static_cast<int>(failed); }
  // checkpoint.every_minutes have passed, by rank 0's clock; so many steps after this one are to be recorded (a whole
  // number up to a million is exact in a float).
  static float pack_requests(bool save_due, int steps_to_record) {
    return static_cast<float>((save_due ? 1 : 0) + 2 * steps_to_record);
  }
  bool save_due() const { return static_cast<int>(requests) % 2 == 1; }
  int steps_to_record() const { return static_cast<int>(requests) / 2; }
};
inline constexpr int kNumStepStatistics = sizeof(StepStatistics) / sizeof(float);

// Of the numbers on the device (kNumStepStatistics) f32, the one whose offset in StepStatistics is `offset` bytes.
inline Tensor step_statistic(const Tensor& statistics, size_t offset) {
  return statistics.flat(static_cast<int64_t>(offset / sizeof(float)), 1);
}

}  // namespace tri
