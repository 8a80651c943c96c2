// A tokenizer's files in the folders of transformers.
#pragma once

#include <string>

#include "lib/config/config.h"

namespace tri::huggingface {

struct TokenizerInfo {
  std::string name;        // for config.json
  std::string summary;     // for the log
  int bos = -1, eos = -1;  // -1: none
};

// Writes tokenizer.json and tokenizer_config.json (for SentencePiece also tokenizer.model) of config.data.tokenizer, so
// that AutoTokenizer gives the ids that the model was trained with: add_bos_token is set if a token began documents.
// Other settings of tokenizer_config.json come from `kept`, the folder of an import (companions.h), or if that is empty
// from the folder of a tokenizer.json.
Result<TokenizerInfo> write_tokenizer(const Config& config, const std::string& folder, const std::string& kept = "");

// Returns the file in `folder` that open_tokenizer reads. Fails with the reason if there is none, or it has more tokens
// than `vocab`.
Result<std::string> find_tokenizer(const std::string& folder, int vocab);

// Returns where copy_tokenizer puts `path`, which find_tokenizer returned.
std::string tokenizer_copy(const std::string& path, const std::string& folder);
// Copies the file into `folder`.
Result<void> copy_tokenizer(const std::string& path, const std::string& folder);

}  // namespace tri::huggingface
