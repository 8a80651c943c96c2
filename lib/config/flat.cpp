#include "lib/config/flat.h"

#include <yaml-cpp/yaml.h>

#include <algorithm>

namespace tri {
namespace {

std::string text_of(const YAML::Node& node) {
  if (!node.IsDefined() || node.IsNull()) return "";
  if (node.IsScalar()) return node.Scalar();
  YAML::Emitter line;
  line << YAML::Flow << node;
  return line.c_str();
}

std::string value_of(const std::vector<FlatField>& fields, const std::string& name) {
  const auto known = std::find_if(fields.begin(), fields.end(), [&](const FlatField& f) { return f.name == name; });
  return known == fields.end() ? "" : known->value;
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
  for (const FlatField& field : after)
    if (std::string old = value_of(before, field.name); old != field.value)
      changes.push_back({field.name, std::move(old), field.value});
  for (const FlatField& field : before) {
    const auto same = [&](const FlatField& other) { return other.name == field.name; };
    if (std::none_of(after.begin(), after.end(), same)) changes.push_back({field.name, field.value, ""});
  }
  return changes;
}

}  // namespace tri
