// What the field table prints: the resolved config and the help.
#include "lib/config/fields.h"

namespace tri {

std::string to_yaml(const Config& config) {
  std::string yaml;
  for (const Section& section : config_sections()) {
    yaml += section.name + ":\n";
    for (const Field& field : section.fields) yaml += fmt::format("  {}: {}\n", field.key, field.print(config));
  }
  return yaml;
}

std::string config_help() {
  std::string help;
  for (const Section& section : config_sections()) {
    help += fmt::format("{}{}: {}\n", help.empty() ? "" : "\n", section.name, section.title);
    for (const Field& field : section.fields)
      help += fmt::format("  {:<32}{}\n      {}\n", fmt::format("{} = {}", field.key, field.rule.default_text),
                          field.rule.allowed_text, field.consequence);
  }
  return help;
}

}  // namespace tri
