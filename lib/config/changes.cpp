#include "lib/config/changes.h"

#include <algorithm>
#include <sstream>

namespace tri {

std::vector<FieldChange> changed_fields(const Config& before, const Config& after) {
  std::vector<FieldChange> changes;
  for (const Section& section : config_sections()) {
    for (const Field& field : section.fields) {
      if (field.on_resume == OnResume::kFree) continue;
      std::string old_value = field.print(before), new_value = field.print(after);
      if (old_value != new_value)
        changes.push_back({field.name(), std::move(old_value), std::move(new_value), field.on_resume});
    }
  }
  return changes;
}

bool accepts_change(const Config& config, std::string_view field) {
  std::string names = config.checkpoint.accept_changes;
  std::replace(names.begin(), names.end(), ',', ' ');
  std::istringstream list(names);
  for (std::string name; list >> name;)
    if (name == field || name == "true") return true;
  return false;
}

}  // namespace tri
