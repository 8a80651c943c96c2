#include "lib/config/flat.h"

#include <yaml-cpp/yaml.h>

#include <map>
#include <string_view>

namespace tri {
namespace {

std::string text_of(const YAML::Node& node) {
  if (!node.IsDefined() || node.IsNull()) return "";
  if (node.IsScalar()) return node.Scalar();
  YAML::Emitter line;
  line << YAML::Flow << node;
  return line.c_str();
}

// Returns values by name; for a repeated name, the first one.
std::map<std::string_view, std::string_view> by_name(const std::vector<FlatField>& fields) {
  std::map<std::string_view, std::string_view> values;
  for (const FlatField& field : fields) values.emplace(field.name, field.value);
  return values;
}

}  // namespace

Result<std::vector<FlatField>> flat_config(std::string_view yaml_text) {
  std::vector<FlatField> fields;
  try {
    const YAML::Node root = YAML::Load(std::string(yaml_text));
    if (!root.IsMap()) return usage_error("a config is a table of sections");
    for (const auto& section : root) {
      const std::string name = text_of(section.first);
      if (!section.second.IsMap()) {
        fields.push_back({name, text_of(section.second)});
        continue;
      }
      for (const auto& field : section.second)
        fields.push_back({name + "." + text_of(field.first), text_of(field.second)});
    }
  } catch (const YAML::Exception& problem) {
    return usage_error("{}", problem.what());
  }
  return fields;
}

std::vector<FlatChange> flat_changes(const std::vector<FlatField>& before, const std::vector<FlatField>& after) {
  std::vector<FlatChange> changes;
  const auto old = by_name(before), present = by_name(after);
  for (const FlatField& field : after) {
    const auto known = old.find(field.name);
    const std::string_view value = known == old.end() ? std::string_view() : known->second;
    if (value != field.value) changes.push_back({field.name, std::string(value), field.value});
  }
  for (const FlatField& field : before)
    if (!present.contains(field.name)) changes.push_back({field.name, field.value, ""});
  return changes;
}

}  // namespace tri
