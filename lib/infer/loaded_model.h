// A checkpoint's model on this rank, for forward passes: its weights and one pass's activations, without gradients or
// optimizer states. Used by `trireme eval` and `trireme generate`.
#pragma once

#include <memory>
#include <optional>

#include "lib/checkpoint/weights.h"
#include "lib/infer/evaluator.h"
#include "lib/infer/text_model.h"

namespace tri {

// Returns the config of a job without a backward pass, before overrides: one process per model, or the checkpoint's own
// tp and pp if they divide `ranks`; nothing saved for backward; the device chosen again.
Config forward_config(Config config, int ranks);

// Changes the config of such a job, after overrides, to one for a TextModel and texts of at most `longest` tokens.
// Fails with kUsage if overrides select FP8.
Result<void> use_cache(Config& config, int64_t longest, int ranks);
// Returns the size of a cache for `sequences` sequences and passes of up to `rows` rows, or as many as the sequences
// need.
CacheSize cache_size(const Config& config, int sequences, int64_t rows);

class LoadedModel {
 public:
  // Allocates and loads the model. `config` must be planned, and check_weights() must have found its model in the
  // checkpoint; it and `device` outlive the model. Collective; all ranks return the first error of any rank.
  // With a cache, the config must be one of use_cache().
  static Result<std::unique_ptr<LoadedModel>> load(const OpenedCheckpoint& checkpoint, const Config& config,
                                                   const Mesh& mesh, Job& job, Device& device,
                                                   const CacheSize& cache = {});

  Evaluator& evaluator() { return *evaluator_; }   // without a cache
  TextModel& text() { return *text_; }             // with a cache
  int64_t bytes() const { return arena_.used(); }  // of device memory

 private:
  LoadedModel(const Config& config, const Mesh& mesh, Job& job, Device& device, const CacheSize& cache);

  Arena arena_;
  Engine engine_;
  std::optional<Evaluator> evaluator_;
  std::optional<TextModel> text_;
};

}  // namespace tri
