// Files of the run folder in which searches keep what they found, so that the next start chooses alike. For one rank.
#pragma once

#include <string>
#include <string_view>

#include "io/base/retry.h"

namespace tri {

// The file's text; "" where there is no such file. Error: storage does not give it, also after several tries; what is
// kept there is then not known, and a new search might choose otherwise. With kDrained where that may pass.
Result<std::string> read_choices(const std::string& file, const Retry& retry = {});

// What the line "KEY VALUE" of `text` says; "" where there is none. A last line that does not end is not whole.
std::string kept_choice(std::string_view text, const std::string& key);
// `text` with that line, in place of one that it has, and without a last line that does not end.
std::string with_choice(std::string_view text, const std::string& key, const std::string& value);

}  // namespace tri
