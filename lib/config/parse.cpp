#include <fmt/ranges.h>
#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "lib/config/fields.h"
#include "lib/config/messages.h"
#include "lib/config/nearest.h"
#include "lib/config/other_names.h"
#include "lib/config/presets.h"
#include "lib/config/yaml_map.h"

namespace tri {
namespace {

const Section* find_section(const std::string& name) {
  for (const Section& section : config_sections())
    if (section.name == name) return &section;
  return nullptr;
}

const Field* find_field(const Section& section, const std::string& key) {
  for (const Field& field : section.fields)
    if (field.key == key) return &field;
  return nullptr;
}

std::vector<std::string> section_names() {
  std::vector<std::string> names;
  for (const Section& section : config_sections()) names.push_back(section.name);
  return names;
}

std::vector<std::string> keys_of(const Section& section) {
  std::vector<std::string> keys;
  for (const Field& field : section.fields) keys.push_back(field.key);
  return keys;
}

// "did you mean run.steps?" for a key that is known, but in another section or by another program; else empty.
std::string known_elsewhere(const std::string& key) {
  for (const Section& section : config_sections())
    if (find_field(section, key)) return "did you mean " + section.name + "." + key + "?";
  const std::string field = field_of_other_name(key);
  return field.empty() ? "" : "did you mean " + field + "?";
}

// For a section of other programs: "; here its lr is lr.peak, its seq_len is model.seq_len"; empty: no key is known.
std::string known_keys(const std::vector<std::string>& keys) {
  std::vector<std::string> names;
  for (const std::string& key : keys) {
    std::string field = field_of_other_name(key);
    for (const Section& section : config_sections())
      if (field.empty() && find_field(section, key)) field = section.name + "." + key;
    if (!field.empty()) names.push_back(fmt::format("its {} is {}", key, field));
  }
  return names.empty() ? "" : fmt::format("; here {}", fmt::join(names, ", "));
}

std::string unknown_section(const std::string& name, const std::vector<std::string>& keys) {
  const std::string near = nearest(name, section_names());
  std::string advice = known_elsewhere(name);
  if (advice.empty() && !near.empty()) advice = "did you mean " + near + "?";
  if (advice.empty()) advice = fmt::format("the sections are {}", fmt::join(section_names(), ", ")) + known_keys(keys);
  return name + ": unknown section; " + advice;
}

std::string unknown_key(const Section& section, const std::string& key) {
  const std::string near = nearest(key, keys_of(section)), other = field_of_other_name(key);
  std::string advice = near.empty() ? known_elsewhere(key) : "did you mean " + section.name + "." + near + "?";
  if (!other.empty()) advice = "did you mean " + other + "?";  // "num_attention_heads" has "attention" in it
  if (advice.empty()) advice = fmt::format("the keys of {} are {}", section.name, fmt::join(keys_of(section), ", "));
  return section.name + "." + key + ": unknown key; " + advice;
}

std::vector<std::string> keys_of_map(const YAML::Node& node) {
  std::vector<std::string> keys;
  if (node.IsMap())
    for (const auto& pair : node)
      if (pair.first.IsScalar()) keys.push_back(pair.first.Scalar());
  return keys;
}

// Reads files and overrides into one Config, and collects what is wrong with them.
class Parser {
 public:
  explicit Parser(const std::string& file_name) : file_name_(file_name) {}

  void read_file(std::string_view text) {
    std::vector<Problem> problems;
    const YAML::Node root = load_document(text, problems);
    for (const Problem& problem : problems) add(problem.line > 0 ? at_line(problem.line) : file_name_, problem.text);
    if (!root.IsNull()) read_document(root);  // else defaults alone
  }

  void read_override(const std::string& text) {
    const std::string where = "--set " + text;
    const size_t equals = text.find('=');
    const std::string name = text.substr(0, equals), value = equals == text.npos ? "" : text.substr(equals + 1);
    const size_t dot = name.find('.');
    const std::string section_name = name.substr(0, dot);
    const Section* section = find_section(section_name);
    if (equals == text.npos || section_name.empty() || (dot == name.npos && section))
      return add(where, "expected section.key=value, such as run.steps=100");
    const std::string key = dot == name.npos ? "" : name.substr(dot + 1);
    if (!section) return add(where, unknown_section(section_name, {key}));
    const Field* field = find_field(*section, key);
    if (!field) return add(where, unknown_key(*section, key));
    try {
      read_field(*field, field->is_text() ? YAML::Node(value) : YAML::Load(value), [&](int) { return where; });
    } catch (const YAML::Exception& error) {
      add(where, fmt::format("{}: not valid YAML: {}", name, error.msg));
    }
  }

  Result<Config> finish() && {
    if (!errors_.empty()) return join_errors(errors_);
    return std::move(config_);
  }

 private:
  void add(const std::string& where, const std::string& text) { errors_.push_back(where + ": " + text); }
  std::string at_line(int line) const { return fmt::format("{}:{}", file_name_, line); }

  // Calls visit(key, line, value) for each pair of a map, once a key.
  template <class Visit>
  void each_pair(const YAML::Node& map, const std::string& prefix, Visit visit) {
    std::vector<Problem> problems;
    const std::vector<YamlPair> pairs = yaml_pairs(map, prefix, problems);
    for (const Problem& problem : problems)
      add(at_line(problem.line), problem.part.empty() ? problem.text : problem.part + ": " + problem.text);
    for (const YamlPair& pair : pairs) visit(pair.key, pair.line, pair.value);
  }

  void read_document(const YAML::Node& root) {
    if (!root.IsMap())
      return add(at_line(root.Mark().line + 1), fmt::format("expected sections, such as \"run:\"; the sections are {}",
                                                            fmt::join(section_names(), ", ")));
    each_pair(root, "", [&](const std::string& name, int line, const YAML::Node& node) {
      if (name.starts_with("x-")) return;  // anchors to merge from
      const Section* section = find_section(name);
      if (!section)
        add(at_line(line), unknown_section(name, keys_of_map(node)));
      else if (node.IsMap())
        read_section(*section, node);
      else if (!node.IsNull())  // a section without lines keeps its defaults
        add(at_line(line),
            fmt::format("{}: is a section; put its keys on lines of their own below it, as key: value", name));
    });
  }

  void read_section(const Section& section, const YAML::Node& map) {
    each_pair(map, section.name + ".", [&](const std::string& key, int line, const YAML::Node& node) {
      if (const Field* field = find_field(section, key))
        read_field(*field, node, [&](int own_line) { return at_line(own_line > 0 ? own_line : line); });
      else
        add(at_line(line), unknown_key(section, key));
    });
  }

  template <class Where>
  void read_field(const Field& field, const YAML::Node& node, Where where) {
    std::vector<Problem> problems;
    field.read(node, field.rule, config_, problems);
    for (const Problem& problem : problems) {
      // "run.steps: 0 is out of range", "data.sources[1].weight: ..."
      add(where(problem.line), fmt::format("{}{}: {}", field.name(), problem.part, problem.text));
    }
  }

  std::string file_name_;
  Config config_;
  std::vector<std::string> errors_;
};

// For a name that is a preset's: how to come by it; else empty.
std::string preset_named(const std::string& path) {
  const std::string name = std::filesystem::path(path).stem().string();
  for (const Preset& preset : presets())
    if (preset.name == name)
      return fmt::format("; {0} is a preset, of which trireme config new --model {0} makes a config", name);
  return "";
}

}  // namespace

Result<std::string> read_config_text(const std::string& path) {
  std::error_code ignored;
  if (std::filesystem::is_directory(path, ignored)) {
    const std::string of_run = (std::filesystem::path(path) / "config.yaml").string();
    return usage_error("{}: is a folder; name a config file{}", path,
                       std::filesystem::exists(of_run, ignored) ? ", such as " + of_run : "");
  }
  std::ifstream file(path, std::ios::binary);
  if (!file) return usage_error("{}: cannot read the config: {}{}", path, std::strerror(errno), preset_named(path));
  std::ostringstream text;
  text << file.rdbuf();
  if (file.bad()) return usage_error("{}: cannot read the config", path);
  return std::move(text).str();
}

bool names_field(const std::vector<std::string>& overrides, std::string_view field) {
  return std::ranges::any_of(overrides, [&](const std::string& setting) {
    return setting.starts_with(field) && setting.substr(field.size()).starts_with('=');
  });
}

Result<Config> parse_config(std::string_view yaml_text, const std::string& file_name,
                            const std::vector<std::string>& overrides) {
  Parser parser(file_name);
  parser.read_file(yaml_text);
  for (const std::string& text : overrides) parser.read_override(text);
  return std::move(parser).finish();
}

}  // namespace tri
