// The rows of lib/config/fields.def as a list for code to iterate over.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "lib/config/config.h"
#include "lib/config/value.h"

namespace tri {

// How a resumed run treats a field that differs from its checkpoint's config (fields.def).
enum class OnResume { kReported, kFixed, kFree };

// How a value is written, for descriptions of fields to other programs.
enum class FieldKind { kInteger, kNumber, kBoolean, kChoice, kChoices, kText, kSources, kStages, kNamedSources };

template <class T>
constexpr FieldKind field_kind() {
  if constexpr (std::is_enum_v<T>)
    return FieldKind::kChoice;
  else if constexpr (std::is_same_v<T, bool>)
    return FieldKind::kBoolean;
  else if constexpr (std::is_integral_v<T>)
    return FieldKind::kInteger;
  else if constexpr (std::is_floating_point_v<T>)
    return FieldKind::kNumber;
  else if constexpr (std::is_same_v<T, std::string>)
    return FieldKind::kText;
  else if constexpr (is_list_of_choices<T>)
    return FieldKind::kChoices;
  else if constexpr (std::is_same_v<T, std::vector<DataStage>>)
    return FieldKind::kStages;
  else if constexpr (std::is_same_v<T, std::vector<NamedSource>>)
    return FieldKind::kNamedSources;
  else
    return FieldKind::kSources;
}

struct Field {
  std::string section, key;  // "model", "layers"
  ValueRule rule;
  std::string_view consequence;
  OnResume on_resume = OnResume::kReported;
  FieldKind kind = FieldKind::kText;
  void (*read)(const YAML::Node& node, const ValueRule& rule, Config& config, std::vector<Problem>& problems);
  std::string (*print)(const Config& config);

  std::string name() const { return section + "." + key; }
  bool has_paths() const {
    return rule.allowed.expands || kind == FieldKind::kSources || kind == FieldKind::kStages ||
           kind == FieldKind::kNamedSources;
  }
  bool is_text() const { return kind == FieldKind::kText; }  // a --set value is used verbatim
  std::string file_text(const Config& config) const;         // the text in a file for the value in `config`
};

struct Section {
  std::string name;
  std::string_view title;
  std::vector<Field> fields;
};

// Returns the sections in the order of fields.def.
const std::vector<Section>& config_sections();

// Looks up "section.key"; returns null if there is none.
const Field* find_field(std::string_view name);

}  // namespace tri
