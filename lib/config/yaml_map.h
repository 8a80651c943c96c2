// The pairs of a YAML map, merge keys resolved.
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

// The one document of a file's text; null where there is none, or where a Problem is appended (its line 0: the file).
YAML::Node load_document(std::string_view text, std::vector<Problem>& problems);

// Those of `map` in its order; after them those that `<<: *NAME` or `<<: [*A, *B]` adds: a key that is there already
// stays as it is, and of two merged maps the first one wins. What is wrong (a key given twice, or that is no word; a
// merge of what is no map) is appended to `problems`, its part being `prefix` and the key.
std::vector<YamlPair> yaml_pairs(const YAML::Node& map, const std::string& prefix, std::vector<Problem>& problems);

}  // namespace tri
