// The tokens of a batch on this rank's device, and the mean loss of a pass over them. A training step and an evaluation
// batch use it in the same way:
//   load(tokens), zero_losses(), a run of a plan, sum_losses(); then the ranks sum RankTensors::loss.
#pragma once

#include <cstdint>
#include <span>

#include "kernels/core/device.h"
#include "lib/engine/rank_tensors.h"

namespace tri {

// Owns nothing. Every function enqueues its work on the compute stream and returns. Call only from the rank's main
// thread.
class BatchInputs {
 public:
  // `tensors` and `compute` outlive the object. `pp`: this rank's place in the pipeline.
  BatchInputs(const RankTensors& tensors, Axis pp, Stream& compute);

  // Copies the tokens of a batch, at most (M, B, T) of this dp rank, to the device. They must stay valid until the
  // stream has copied them. Tokens that this rank's stage does not read are ignored and may be empty. Without
  // `document_starts` (as StepTokens) each sample is one document.
  void load(std::span<const int32_t> inputs, std::span<const int32_t> targets,
            std::span<const int32_t> document_starts = {});

  // Sets the losses of the microbatches to zero, before a run of a plan.
  void zero_losses();
  // After the run, writes this rank's part of the batch's mean loss to `loss` of the rank's tensors.
  void sum_losses();

 private:
  const RankTensors& tensors_;
  const bool has_losses_;  // this rank holds the last virtual stage
  Stream& compute_;
};

}  // namespace tri
