// The rows of lib/config/fields.def as a list that code can walk.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "lib/config/config.h"
#include "lib/config/value.h"

namespace tri {

// What it means that a field differs from the config of the checkpoint from which a run goes on (fields.def).
enum class OnResume { kTold, kFixed, kFree };

struct Field {
  std::string section, key;  // "model", "layers"
  ValueRule rule;
  std::string_view consequence;
  OnResume on_resume = OnResume::kTold;
  bool is_text = false;  // a --set value is taken as it stands
  void (*read)(const YAML::Node& node, const ValueRule& rule, Config& config, std::vector<Problem>& problems);
  std::string (*print)(const Config& config);

  std::string name() const { return section + "." + key; }
};

struct Section {
  std::string name;
  std::string_view title;
  std::vector<Field> fields;
};

// In the order of fields.def.
const std::vector<Section>& config_sections();

}  // namespace tri
