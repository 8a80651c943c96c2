#include "lib/config/changes.h"

#include <algorithm>
#include <sstream>

namespace tri {

std::vector<FieldChange> changed_fields(const Config& before, const Config& after, Fields fields) {
  std::vector<FieldChange> changes;
  for (const Section& section : config_sections()) {
    for (const Field& field : section.fields) {
      if (fields == Fields::kTrained && field.on_resume == OnResume::kFree) continue;
      std::string old_value = field.print(before), new_value = field.print(after);
      if (old_value != new_value)
        changes.push_back({field.name(), std::move(old_value), std::move(new_value), field.on_resume});
    }
  }
  return changes;
}

std::vector<std::string> accepted_changes(const Config& config) {
  std::string text = config.checkpoint.accept_changes;
  std::replace(text.begin(), text.end(), ',', ' ');
  std::istringstream list(text);
  std::vector<std::string> names;
  for (std::string name; list >> name;) names.push_back(name);
  return names;
}

bool accepts_change(const Config& config, std::string_view field) {
  const std::vector<std::string> names = accepted_changes(config);
  return std::any_of(names.begin(), names.end(),
                     [&](const std::string& name) { return name == field || name == "true"; });
}

}  // namespace tri
