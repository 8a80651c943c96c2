// A tokenizer's files in folders of transformers.
#pragma once

#include <string>

#include "lib/config/config.h"

namespace tri::huggingface {

struct TokenizerInfo {
  std::string name;        // for config.json
  std::string summary;     // for the log
  int bos = -1, eos = -1;  // -1: none
};

// Writes tokenizer.json and tokenizer_config.json (of SentencePiece tokenizer.model as well) of config.data.tokenizer,
// so that AutoTokenizer makes the ids that the model was trained with: add_bos_token says whether a token began
// documents. What else tokenizer_config.json says is taken from `kept`, the folder of an import (companions.h), or
// where that is empty from the folder of a tokenizer.json.
Result<TokenizerInfo> write_tokenizer(const Config& config, const std::string& folder, const std::string& kept = "");

// The file in `folder` that open_tokenizer reads. Error with the reason when there is none, or it has more tokens than
// `vocab`.
Result<std::string> find_tokenizer(const std::string& folder, int vocab);

// Where copy_tokenizer puts `path`, of find_tokenizer.
std::string tokenizer_copy(const std::string& path, const std::string& folder);
// Copies it into `folder`.
Result<void> copy_tokenizer(const std::string& path, const std::string& folder);

}  // namespace tri::huggingface
