// The version of a file's format, which readers check so that they do not misread what a newer release wrote. JSON
// has it in the field "schema"; without the field it is version 1.
#pragma once

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <string_view>

#include "io/base/error.h"

namespace tri {

// Fails if `found` is above `known`, the newest version that the caller reads. `source`: the path, for the message.
inline Result<void> check_schema(std::string_view source, int64_t found, int64_t known) {
  if (found <= known) return {};
  return file_error(
      "{}: a newer release of Trireme wrote it (schema {}); this one reads schemas up to {}: use that release", source,
      found, known);
}

// Returns the version of an object on one line, where the field is the last one, or the last but the time.
inline int64_t schema_of_line(std::string_view line) {
  constexpr std::string_view kField = R"(,"schema":)";  // inside a text the quotes would be escaped
  constexpr size_t kNearEnd = 64;
  const std::string_view end = line.substr(line.size() - std::min(line.size(), kNearEnd));
  int64_t version = 1;
  if (const size_t at = end.rfind(kField); at != end.npos)
    std::from_chars(end.data() + at + kField.size(), end.data() + end.size(), version);
  return version;
}

}  // namespace tri
