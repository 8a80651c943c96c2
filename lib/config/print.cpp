// Prints the resolved config and the help from the field table.
#include <yaml-cpp/yaml.h>

#include "lib/config/batch_sizes.h"
#include "lib/config/environment.h"
#include "lib/config/fields.h"
#include "lib/config/nearest.h"

namespace tri {

std::string Field::file_text(const Config& config) const {
  return has_paths() ? escape_environment(print(config)) : print(config);
}

namespace {

// Whether another field replaces the default of this one, with which it must not be named (batch_sizes.h).
bool is_replaced(const Field& field, const Config& config) {
  if (field.name() == "run.steps") return config.run.steps == RunConfig{}.steps && !steps_conflict(config).empty();
  return field.name() == "data.global_batch" && config.data.global_batch == DataConfig{}.global_batch &&
         !batch_conflict(config).empty();
}

}  // namespace

std::string to_yaml(const Config& config) {
  std::string yaml;
  for (const Section& section : config_sections()) {
    yaml += section.name + ":\n";
    for (const Field& field : section.fields)
      if (!is_replaced(field, config)) yaml += fmt::format("  {}: {}\n", field.key, field.file_text(config));
  }
  return yaml;
}

Result<std::string> config_value(const Config& config, const std::string& name) {
  std::vector<std::string> names;
  for (const Section& section : config_sections()) {
    for (const Field& field : section.fields) {
      if (field.name() != name) {
        names.push_back(field.name());
        continue;
      }
      const std::string value = field.print(config);
      return field.is_text() ? YAML::Load(value).as<std::string>() : value;
    }
  }
  const std::string guess = nearest(name, names);
  return usage_error("{}: no such field{}", name, guess.empty() ? "" : "; did you mean " + guess + "?");
}

std::string config_help() {
  std::string help;
  for (const Section& section : config_sections()) {
    help += fmt::format("{}{}: {}\n", help.empty() ? "" : "\n", section.name, section.title);
    for (const Field& field : section.fields)
      help += fmt::format("  {:<39} {}\n      {}\n", fmt::format("{} = {}", field.name(), field.rule.default_text),
                          field.rule.allowed_text, field.consequence);
  }
  return help;
}

}  // namespace tri
