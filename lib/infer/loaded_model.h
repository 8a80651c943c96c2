// A checkpoint's model on this rank, for forward passes: its weights and one microbatch's activations. No gradients, no
// optimizer states. Used by `trireme eval` and `trireme generate`.
#pragma once

#include <memory>

#include "lib/checkpoint/weights.h"
#include "lib/infer/evaluator.h"

namespace tri {

// What a job without a backward pass makes of a checkpoint's config before the overrides: one process a model, or the
// checkpoint's own tp and pp where they divide `ranks`; nothing kept for backward; the device chosen again.
Config forward_config(Config config, int ranks);

class LoadedModel {
 public:
  // Allocates and loads. `config` is planned, and check_weights() has found its model in the checkpoint; it and
  // `device` outlive the model. Collective; the first error that any rank met, on all.
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
