// Shared by readers and writers of tokenizer.json.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "io/base/error.h"
#include "io/base/json.h"
#include "io/tokens/bpe/bpe_tokenizer.h"

namespace tri {

// An error in a file, thrown to the function that opens it, which prepends the file's name.
[[noreturn]] void refuse(const std::string& message);

// Parses `text`; discarded if it is not JSON. Refuses deep nesting, since code that traverses a value recurses at every
// level.
nlohmann::json parse_shallow(std::string_view text, const char* name);

// Returns the object in the file `name` next to `path`; {} if there is no such file. Throws Error.
nlohmann::json read_beside(const std::string& path, const char* name);

// Objects of a tokenizer.json that is written here: a special token, ByteLevel, and the model, by its vocabulary and
// merges; `ignore_merges`: a whole word of the vocabulary is a token even if no merge makes it.
nlohmann::ordered_json special_token_json(int64_t id, const std::string& content);
nlohmann::ordered_json byte_level_json();
nlohmann::ordered_json bpe_model_json(const nlohmann::ordered_json& vocab, const nlohmann::ordered_json& merges,
                                      bool ignore_merges);

// Returns the post_processor that puts `d.begin` before a text and nothing after it; null if `d.begin` is empty.
nlohmann::ordered_json begin_template(const BpeDescription& d);

}  // namespace tri
