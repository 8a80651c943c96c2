// The differences between the config that a checkpoint was saved with and the one with which the run continues.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "lib/config/fields.h"

namespace tri {

struct FieldChange {
  std::string name;           // "model.window"
  std::string before, after;  // as in to_yaml
  OnResume on_resume;
};

enum class Fields {
  kTrained,
  kAll
};  // kTrained: all except those on which the training does not depend
    // (OnResume::kFree)

// Returns the fields that differ, in the order of fields.def. Both configs must be resolved, or neither.
std::vector<FieldChange> changed_fields(const Config& before, const Config& after, Fields fields = Fields::kTrained);

// Returns the names in checkpoint.accept_changes, or "true". Commas or blanks separate names.
std::vector<std::string> accepted_changes(const Config& config);
bool accepts_change(const Config& config, std::string_view field);

}  // namespace tri
