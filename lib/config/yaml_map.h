// The pairs of a YAML map, merge keys resolved.
#pragma once

#include <yaml-cpp/yaml.h>

#include <string>
#include <vector>

#include "lib/config/value.h"

namespace tri {

struct YamlPair {
  std::string key;
  int line = 0;  // of the key, 1-based
  YAML::Node value;
};

// Those of `map` in its order; after them those that `<<: *NAME` or `<<: [*A, *B]` adds: a key that is there already
// stays as it is, and of two merged maps the first one wins. What is wrong (a key given twice, or that is no word; a
// merge of what is no map) is appended to `problems`, its part being `prefix` and the key.
std::vector<YamlPair> yaml_pairs(const YAML::Node& map, const std::string& prefix, std::vector<Problem>& problems);

}  // namespace tri
