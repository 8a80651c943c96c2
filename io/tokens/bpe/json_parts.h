// What readers and writers of tokenizer.json share.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "io/base/error.h"
#include "io/tokens/bpe/bpe_tokenizer.h"

namespace tri {

// A mistake in a file, thrown to the function that opens it, which puts the file's name before it.
[[noreturn]] void refuse(const std::string& message);

// What `text` says; discarded when it is no JSON. Refused when it is nested deeply: what walks through a value calls
// itself for every level of it.
nlohmann::json parse_shallow(std::string_view text, const char* name);

// The object in the file `name` next to `path`; {} when there is no such file. Throws Error.
nlohmann::json read_beside(const std::string& path, const char* name);

// A token in one of these files: its text, or an object that has it as "content". Empty: none.
std::string named_token(const nlohmann::json& json, const char* key);

// The post_processor that puts `d.begin` before a text, and nothing behind it; null where nothing is put there.
nlohmann::ordered_json begin_template(const BpeDescription& d);

}  // namespace tri
