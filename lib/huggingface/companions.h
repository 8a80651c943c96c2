// Files of a Hugging Face folder that hold neither weights nor token ids but are needed for generation: the chat
// template, the tokens that end a text. An import keeps them in the run's folder; an export writes them again.
#pragma once

#include <string>
#include <vector>

#include "lib/config/config.h"
#include "lib/huggingface/weight_format.h"

namespace tri::huggingface {

// Returns their names in `folder`: paths inside it, without config.json and the tokenizer's settings. None for "".
std::vector<std::string> companions_in(const std::string& folder);

// Copies existing ones and the tokenizer's settings from `folder` into `run_dir`, and config.json under the name
// imported_config.json. Returns the names in `folder`, without config.json. Fails with kFile if one cannot be read or
// written.
Result<std::vector<std::string>> keep_companions(const std::string& folder, const std::string& run_dir);

// Returns the folder in which an import kept them for the run of `checkpoint`; "" if there is none, or if
// data.tokenizer is no longer the imported one, to which they belong.
std::string companions_of(const std::string& checkpoint, const Config& config);

// Returns the token ids in imported_config.json of `kept`, or in `otherwise` for those that it lacks.
Ends imported_ends(const std::string& kept, Ends otherwise);

// Returns the model_type in imported_config.json of `kept`; "" if there is none.
std::string imported_model_type(const std::string& kept);

// Copies companions_in(kept) into `folder`, and returns them.
Result<std::vector<std::string>> write_companions(const std::string& kept, const std::string& folder);

}  // namespace tri::huggingface
