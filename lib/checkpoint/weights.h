// A checkpoint as a model: where it lies, how it was configured, and its weights alone. Optimizer states are neither
// read nor asked for.
#pragma once

#include <string>
#include <vector>

#include "io/checkpoint/shard_reader.h"
#include "kernels/core/device.h"
#include "lib/config/config.h"
#include "lib/model/parameter.h"

namespace tri {

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

// Reads the weights of this tp rank's `parameters` (memory on the device, any compute dtype), some at a time on all
// cores. A table of positions may be shorter than the checkpoint's. Error: a tensor is missing, damaged, or has another
// shape.
Result<void> load_weights(const CheckpointReader& reader, Axis tp,
                          const std::vector<std::vector<Parameter>>& parameters, Stream& stream);

}  // namespace tri
