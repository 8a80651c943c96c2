// A checkpoint's model on this rank, for forward passes: its weights and one microbatch's activations, without
// gradients or optimizer states. Used by `trireme eval` and `trireme generate`.
#pragma once

#include <memory>

#include "lib/checkpoint/weights.h"
#include "lib/infer/evaluator.h"

namespace tri {

// Returns the config of a job without a backward pass, before overrides: one process per model, or the checkpoint's own
// tp and pp if they divide `ranks`; nothing saved for backward; the device chosen again.
Config forward_config(Config config, int ranks);

class LoadedModel {
 public:
  // Allocates and loads the model. `config` must be planned, and check_weights() must have found its model in the
  // checkpoint; it and `device` outlive the model. Collective; all ranks return the first error of any rank.
  static Result<std::unique_ptr<LoadedModel>> load(const OpenedCheckpoint& checkpoint, const Config& config,
                                                   const Mesh& mesh, Job& job, Device& device);

  Evaluator& evaluator() { return evaluator_; }
  int64_t bytes() const { return arena_.used(); }  // of device memory

 private:
  LoadedModel(const Config& config, const Mesh& mesh, Job& job, Device& device);

  Arena arena_;
  Engine engine_;
  Evaluator evaluator_;
};

}  // namespace tri
