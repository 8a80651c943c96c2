// The keys of config.json that describe rotary positions: rope_theta, rope_scaling (transformers 4) and rope_parameters
// (transformers 5), in both directions; and partial_rotary_factor.
#pragma once

#include <string>

#include "io/base/json.h"
#include "lib/config/config.h"

namespace tri::huggingface {

// Sets model.rope_* from the object `json` of the file `path`; model.seq_len must be set. As in transformers 5,
// rope_scaling, unless it is empty, replaces rope_parameters, and their rope_theta comes before that of the config.
// `names`: the family's own keys. Fails with the key that has no equivalent.
struct RopeNames {
  std::string_view theta = {};     // another name of rope_theta
  std::string_view fraction = {};  // another name of partial_rotary_factor
  double fraction_when_absent = 1;
  bool rotates_parts = false;  // whether partial_rotary_factor has an effect
  double theta_when_absent = 10000;
};
Result<void> read_rope(const std::string& path, const nlohmann::ordered_json& json, const RopeNames& names,
                       ModelConfig& model);

// Adds the keys of both versions.
void write_rope(const ModelConfig& model, const RopeNames& names, nlohmann::ordered_json& json);

}  // namespace tri::huggingface
