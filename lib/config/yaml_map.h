// The pairs of a YAML map, with merge keys resolved.
#pragma once

#include <yaml-cpp/yaml.h>

#include <string>
#include <string_view>
#include <vector>

#include "lib/config/value.h"

namespace tri {

struct YamlPair {
  std::string key;
  int line = 0;  // of the key, 1-based
  YAML::Node value;
};

// Returns the only document of a file's text; null if there is none, or after appending a Problem (line 0: the file).
YAML::Node load_document(std::string_view text, std::vector<Problem>& problems);

// Returns the pairs of `map` in order, then those that `<<: *NAME` or `<<: [*A, *B]` adds: an existing key stays
// unchanged, and of two merged maps the first one wins. Appends errors (a key given twice or not a single word; a merge
// of something other than a map) to `problems`, with `prefix` and the key as the part.
std::vector<YamlPair> yaml_pairs(const YAML::Node& map, const std::string& prefix, std::vector<Problem>& problems);

}  // namespace tri
