// Files of a Hugging Face folder that hold neither weights nor token ids, but that generation needs: how conversations
// are written, which tokens end a text. An import keeps them in the run's folder, an export writes them out again.
#pragma once

#include <string>
#include <vector>

#include "lib/config/config.h"
#include "lib/huggingface/weight_format.h"

namespace tri::huggingface {

// The names of those in `folder`: paths inside it, without config.json and the tokenizer's settings. None for "".
std::vector<std::string> companions_in(const std::string& folder);

// Copies those that are there and the tokenizer's settings from `folder` into `run_dir`, and config.json under the name
// imported_config.json. Returns the names in `folder`, without config.json. Fails with kFile when one cannot be read or
// written.
Result<std::vector<std::string>> keep_companions(const std::string& folder, const std::string& run_dir);

// The folder in which an import kept them for the run of `checkpoint`; "" when there is none, or when data.tokenizer is
// no longer the imported one, for whose tokens they stand.
std::string companions_of(const std::string& checkpoint, const Config& config);

// The token ids that imported_config.json of `kept` names; those it lacks are taken from `otherwise`.
Ends imported_ends(const std::string& kept, Ends otherwise);

// Copies companions_in(kept) into `folder`, and returns them.
Result<std::vector<std::string>> write_companions(const std::string& kept, const std::string& folder);

}  // namespace tri::huggingface
