// Reads one line of JSON lines.
#pragma once

#include <string_view>

#include "io/base/error.h"
#include "io/base/json.h"

namespace tri {

// For messages on files with other JSON.
inline constexpr std::string_view kJsonLines =
    "JSON lines has a whole object on each line (jq -c '.[]' FILE converts an array, jq -c . FILE objects)";

// Returns the value in `line`: JSON, and what Python's json.dumps writes beyond it. Half of a surrogate pair (\ud83d
// alone) is read as U+FFFD, and NaN, Infinity, -Infinity and numbers beyond a double as 0. The error gives the byte of
// the line (from 1) and the problem, without the line's name. Safe for concurrent use.
Result<nlohmann::json> parse_json_line(std::string_view line);

// Returns the member that `path` names: a key, or keys of nested objects joined by dots. Null: there is none.
const nlohmann::json* find_json_field(const nlohmann::json& object, std::string_view path);

}  // namespace tri
