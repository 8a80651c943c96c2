// A checkpoint as a model: its location, its config, and its weights without the optimizer's state.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "io/checkpoint/manifest.h"
#include "kernels/core/device.h"
#include "lib/comm/job/job.h"
#include "lib/config/config.h"
#include "lib/model/parameter.h"

namespace tri {

// Returns the folder of checkpoints that `path` means: that of a run, or `path` itself. It may be missing or empty.
Result<std::string> find_checkpoints_folder(const std::string& path);

// Returns the checkpoint that `path` means: a checkpoint's own folder, or the newest valid one of a folder of
// checkpoints or of a run (whose resolved.yaml or config.yaml names the folder). Fails if there is none, or if the
// config cannot be read.
Result<std::string> find_checkpoint(const std::string& path);

// Returns the resolved config of the checkpoint's run.
Result<Config> checkpoint_config(const std::string& folder, const Manifest& manifest);

// The weights after the last step, or their exponential moving average (optimizer.ema). Both are fp32.
enum class WeightSet { kLast, kAverage };

// Returns the name of a parameter's weights in a checkpoint: "model/<parameter>", or "ema/<parameter>".
std::string weight_name(const std::string& parameter, WeightSet set = WeightSet::kLast);

// Checks that the checkpoint holds this set of weights. Fails with kUsage if it has no average.
Result<void> check_weight_set(const std::string& folder, const Manifest& manifest, WeightSet set);
bool holds_average(const Manifest& manifest);

// Marks a checkpoint of weights alone: a run that begins from it starts with zero moments. The value names the origin
// of the weights.
inline constexpr const char* kWeightsAlone = "weights_from";
bool holds_weights_alone(const Manifest& manifest);  // whether `manifest` has this mark

// A checkpoint as world rank 0 has opened it for its job; the other ranks know its folder.
struct OpenedCheckpoint {
  std::string folder;
  std::optional<Manifest> manifest;      // on rank 0
  WeightSet weights = WeightSet::kLast;  // those that load_weights() reads
};

// Checks that `config` describes the model that was trained: fields such as model.window keep the names and shapes of
// the weights and yet change the model. Fails with kUsage, naming each field that differs with both values, unless
// checkpoint.accept_changes names it: then it logs a warning. The error suggests accept_changes only if the checkpoint
// holds the weights of the config's model. Both configs are resolved, or neither. World rank 0 only.
Result<void> check_model(const OpenedCheckpoint& checkpoint, const Config& trained, const Config& config);

// Checks that the checkpoint holds the weights of the config's model and no others, by names and shapes. The config's
// table of positions may be shorter. Fails with kUsage, naming the first missing or surplus tensor. Not collective.
Result<void> check_weights(const OpenedCheckpoint& checkpoint, const Config& config);

// Reads the weights (OpenedCheckpoint::weights) of this tp rank's `parameters` (memory on the device, any compute
// dtype), a few at a time; shards that several ranks need are read from storage once (load.h). Fails, with the same
// error on all ranks, if a tensor is missing, damaged or of another shape. Collective.
Result<void> load_weights(const OpenedCheckpoint& checkpoint, const Mesh& mesh,
                          const std::vector<std::vector<Parameter>>& parameters, Stream& stream, Job& job);

}  // namespace tri
