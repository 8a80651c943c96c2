// A config file's fields by name, whatever they are: also of a file that another version has written.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "io/base/error.h"

namespace tri {

struct FlatField {
  std::string name;   // "model.layers"
  std::string value;  // text as it stands; lists and tables as YAML on one line
  bool operator==(const FlatField&) const = default;
};

// In the order of the file. Error (kUsage): it is no YAML, or no table.
Result<std::vector<FlatField>> flat_config(std::string_view yaml_text);

// A field that differs; "": it is absent on that side.
struct FlatChange {
  std::string name, before, after;
};

// In the order of `after`; those that it lacks come last.
std::vector<FlatChange> flat_changes(const std::vector<FlatField>& before, const std::vector<FlatField>& after);

}  // namespace tri
