// What differs between the config that a checkpoint was saved with and the one that a run goes on with.
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

enum class Fields { kTrained, kAll };  // kTrained: all except those on which nothing depends (OnResume::kFree)

// The fields that differ, in the order of fields.def. Both configs resolved, or both not.
std::vector<FieldChange> changed_fields(const Config& before, const Config& after, Fields fields = Fields::kTrained);

// What checkpoint.accept_changes names, or "true". Names stand apart by commas or blanks.
std::vector<std::string> accepted_changes(const Config& config);
bool accepts_change(const Config& config, std::string_view field);

}  // namespace tri
