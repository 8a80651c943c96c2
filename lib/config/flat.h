// A config file's fields by name, without interpretation, so that files of other versions can be read too.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "io/base/error.h"

namespace tri {

struct FlatField {
  std::string name;   // "model.layers"
  std::string value;  // plain text; lists and tables as YAML on one line
  bool operator==(const FlatField&) const = default;
};

// Returns the fields in file order. Fails with kUsage if the text is not YAML or not a table.
Result<std::vector<FlatField>> flat_config(std::string_view yaml_text);

// A field that differs; "": it is absent on that side.
struct FlatChange {
  std::string name, before, after;
};

// Returns the changes in the order of `after`; fields that it lacks come last.
std::vector<FlatChange> flat_changes(const std::vector<FlatField>& before, const std::vector<FlatField>& after);

}  // namespace tri
