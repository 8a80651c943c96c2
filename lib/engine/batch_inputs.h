// The tokens of a batch on this rank's device, and the mean of the losses that a pass over them leaves. A step of
// training and a batch of an evaluation use it in the same way:
//   load(inputs, targets), zero_losses(), a run of a plan, sum_losses(); then the ranks sum RankTensors::loss.
#pragma once

#include <cstdint>
#include <span>

#include "kernels/core/device.h"
#include "lib/engine/rank_tensors.h"

namespace tri {

// Owns nothing. Every function enqueues its work on the compute stream and returns; call them from the thread that
// trains.
class BatchInputs {
 public:
  // `tensors` and `compute` outlive the object. `pp`: this rank's place in the pipeline.
  BatchInputs(const RankTensors& tensors, Axis pp, Stream& compute);

  // Copies the tokens of a batch, (M, B, T) of this dp rank or fewer, to the device. They stay valid until the stream
  // has copied them. Tokens that this rank's stage does not take are ignored and may be empty.
  void load(std::span<const int32_t> inputs, std::span<const int32_t> targets);

  // Before a run of a plan: the losses of the microbatches count as zero.
  void zero_losses();
  // After it: `loss` of the rank's tensors becomes this rank's part of the batch's mean loss.
  void sum_losses();

 private:
  const RankTensors& tensors_;
  const bool has_losses_;  // the last stage
  Stream& compute_;
};

}  // namespace tri
