// `trireme config new`: writes a first run config with an explanation of each of its fields.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "lib/simulate/cluster.h"

namespace tri {

inline constexpr int kOtherVocab = 4;  // a model.vocab this many times its tokenizer's size was made for another
                                       // tokenizer

inline constexpr std::string_view kTrainingPreset = "llama_8b";  // how models that are no presets are trained

struct NewConfig {
  std::string model;  // a preset's name (lib/config/presets.h), or where imported_model comes from
  std::optional<ModelConfig> imported_model;  // of the settings of kTrainingPreset, in place of a preset
  int ranks = 0;                              // GPUs; of a preset for the CPU, ranks
  std::string name;                           // run.name; "": the preset's
  std::vector<std::string> data;              // prefixes of token files
  std::string tokenizer;                      // "": the preset's
  std::vector<std::string> overrides;         // "section.key=value"
  int data_vocab = 0;                         // of the tokenizer that made the data; 0: not known
};

// Returns the config's text: the preset with these changes and, of the layouts that fit into the cluster's memory, the
// fastest one. A CPU preset keeps its own layout if that divides the ranks, and so does a preset whose overrides name a
// field that the search would choose (chosen_by_search). The text contains every field that is not at its default, and
// those that users change most, with a line on each. parse_config and resolve_config accept it for `ranks`. model.vocab
// is that of the data if the preset's is too small, or so large that it belongs to another tokenizer. Fails with kUsage
// if the preset is unknown, an override is invalid, or no layout fits.
Result<std::string> new_config(const NewConfig& options, const Cluster& cluster);

// Returns a line if the overrides change model.hidden but keep the preset's own feed-forward width; the new config also
// contains it as a comment. "" if there is nothing to report, or no such preset.
std::string ffn_hidden_remark(const NewConfig& options);

}  // namespace tri
