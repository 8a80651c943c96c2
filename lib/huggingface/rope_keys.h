// The keys of config.json that describe rotary positions: rope_theta, rope_scaling (transformers 4) and rope_parameters
// (transformers 5), in both directions.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "lib/config/config.h"

namespace tri::huggingface {

// Sets model.rope_* from the object `json` of the file `path`; model.seq_len must be set. As in transformers 5,
// rope_scaling, unless it is empty, replaces rope_parameters, and their rope_theta comes before that of the config.
// Fails with the key that has no equivalent.
Result<void> read_rope(const std::string& path, const nlohmann::ordered_json& json, ModelConfig& model);

// Adds the keys of both versions.
void write_rope(const ModelConfig& model, nlohmann::ordered_json& json);

}  // namespace tri::huggingface
