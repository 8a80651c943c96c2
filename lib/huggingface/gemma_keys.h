// The keys of config.json by which Gemma differs from the other decoders, in both directions: the factors and bounds of
// scores, logits and embeddings, which layers have a window, and the base of their rope.
#pragma once

#include <string>
#include <vector>

#include "io/base/json.h"
#include "lib/config/config.h"

namespace tri::huggingface {

enum class Gemma { kNone, kTwo, kThree };  // kThree: the text model, gemma3_text

// Sets what the generation's models have in common, and the fields of its own keys, from the object `json` of the file
// `path`; model.seq_len, layers, hidden, head_dim and window must be set. A key that is absent has transformers'
// default. Fails with the key that has no equivalent.
Result<void> read_gemma(const std::string& path, const nlohmann::ordered_json& json, Gemma generation,
                        ModelConfig& model);

// The same for the keys of rope, which Gemma-3 has for two kinds of layers. Call after read_gemma.
Result<void> read_gemma_rope(const std::string& path, const nlohmann::ordered_json& json, Gemma generation,
                             ModelConfig& model);

// Adds the keys that both functions read, for versions 4 and 5 of transformers.
void write_gemma(Gemma generation, const ModelConfig& model, nlohmann::ordered_json& json);

// Returns one line for each of these fields whose value `architecture`, of the generation, can't express.
std::vector<std::string> gemma_objections(Gemma generation, std::string_view architecture, const ModelConfig& model);

}  // namespace tri::huggingface
