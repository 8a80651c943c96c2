// `trireme config new`: a run config to begin with, written out with what each of its fields does.
#pragma once

#include <string>
#include <vector>

#include "lib/simulate/cluster.h"

namespace tri {

inline constexpr int kOtherVocab = 4;  // times its tokenizer's tokens: a model.vocab that was made for another one

struct NewConfig {
  std::string model;                   // a preset's name (lib/config/presets.h)
  int ranks = 0;                       // GPUs; of a preset for the CPU, ranks
  std::string name;                    // run.name; "": the preset's
  std::vector<std::string> data;       // prefixes of token files
  std::string tokenizer;               // "": the preset's
  std::vector<std::string> overrides;  // "section.key=value"
  int data_vocab = 0;                  // of the tokenizer that made the data; 0: not known
};

// The config's text: the preset with these changes, and of the layouts that fit into the cluster's memory the one that
// runs fastest there; a preset for the CPU keeps its own where that divides the ranks, and so does one whose overrides
// name a field that the search would choose (chosen_by_search). Every field that is not at its default, and those that
// a user is most likely to change, with a line on what it does. parse_config and resolve_config take it for `ranks`.
// model.vocab is that of the data where the preset's has no room for it, or is several times as large: another
// tokenizer's. Error (kUsage): no such preset, a mistake in the overrides, no layout fits.
Result<std::string> new_config(const NewConfig& options, const Cluster& cluster);

// A line when the overrides change model.hidden and leave the preset's own feed-forward width; it is a comment of the
// new config as well. "" when there is nothing to say, or no such preset.
std::string ffn_hidden_remark(const NewConfig& options);

}  // namespace tri
