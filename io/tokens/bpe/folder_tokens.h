// Reads what AutoTokenizer (transformers 5) reads from the files next to a tokenizer.json: tokenizer_config.json,
// special_tokens_map.json, added_tokens.json and config.json (in an imported run's folder: imported_config.json). Each
// may be missing.
#pragma once

#include <string>
#include <vector>

#include "io/base/json.h"
#include "io/tokens/bpe/added_tokens.h"

namespace tri {

struct FolderTokens {
  // In the order in which they are added, after those of tokenizer.json. The id is the one in the folder; -1: none.
  std::vector<AddedToken> tokens;
  std::string eos, bos;         // contents; empty: not given
  bool splits_special = false;  // special tokens in a text are encoded as text

  // The class that reads only vocabulary, merges and post-processor from tokenizer.json, and sets the rest itself;
  // empty: none.
  std::string own_class;
  nlohmann::json own_normalizer, own_pre_tokenizer;  // set by that class
  bool keeps_template = true;                        // false: that class drops the post-processor
  bool unsupported = false;                          // what that class sets is not known here
};

enum class OwnClassUse { kFollow, kIgnore };  // kIgnore: uses tokenizer.json unchanged

// `added`: the tokens of tokenizer.json. Throws Error, naming the file, for an invalid value.
FolderTokens read_folder_tokens(const std::string& path, const std::vector<AddedToken>& added, OwnClassUse class_use);

}  // namespace tri
