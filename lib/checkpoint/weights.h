// A checkpoint as a model: where it lies, how it was configured, and its weights alone. Optimizer states are neither
// read nor asked for.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "io/checkpoint/manifest.h"
#include "kernels/core/device.h"
#include "lib/comm/job.h"
#include "lib/config/config.h"
#include "lib/model/parameter.h"

namespace tri {

// The folder of checkpoints that `path` means: that of a run, or `path` itself. It need not be there yet, nor hold one.
Result<std::string> find_checkpoints_folder(const std::string& path);

// The checkpoint that `path` means: a checkpoint's own folder, or the newest valid one of a folder of checkpoints or
// of a run (resolved.yaml there, or config.yaml, says where it keeps them).
Result<std::string> find_checkpoint(const std::string& path);

// The resolved config that the checkpoint's run had.
Result<Config> checkpoint_config(const std::string& folder, const Manifest& manifest);

// "model/<parameter>": the fp32 weights' name in a checkpoint.
std::string weight_name(const std::string& parameter);

// A checkpoint of weights alone says so: a run that begins from it starts with zero moments. The value tells people
// where the weights came from.
inline constexpr const char* kWeightsAlone = "weights_from";
bool holds_weights_alone(const Manifest& manifest);

// A checkpoint as world rank 0 has opened it for its job: the others know its folder.
struct OpenedCheckpoint {
  std::string folder;
  std::optional<Manifest> manifest;  // rank 0's
};

// Whether `config` runs the model that was trained: fields such as model.window leave names and shapes of the weights
// as they are and yet make another model. Error (kUsage), naming each that differs with both values, unless
// checkpoint.accept_changes names it: then a warning. The error offers accept_changes only where the checkpoint holds
// the weights of the config's model. Both configs resolved, or both not. For world rank 0.
Result<void> check_model(const OpenedCheckpoint& checkpoint, const Config& trained, const Config& config);

// Whether the checkpoint holds the weights of the config's model, and no other model's, by names and shapes. A table of
// positions may be shorter than the checkpoint's. Error (kUsage), naming the first that is too few or too many. For one
// rank.
Result<void> check_weights(const OpenedCheckpoint& checkpoint, const Config& config);

// Reads the weights of this tp rank's `parameters` (memory on the device, any compute dtype), some at a time; what
// several ranks need comes from storage once (load.h). Collective; the same first error on all ranks: a tensor is
// missing, damaged, or has another shape.
Result<void> load_weights(const OpenedCheckpoint& checkpoint, const Mesh& mesh,
                          const std::vector<std::vector<Parameter>>& parameters, Stream& stream, Job& job);

}  // namespace tri
