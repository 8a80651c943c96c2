#include <fmt/ranges.h>
#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <map>

#include "io/base/log.h"
#include "io/base/text_file.h"
#include "io/tokens/utf8.h"
#include "lib/config/batch_sizes.h"
#include "lib/config/fields.h"
#include "lib/config/nearest.h"
#include "lib/config/other_names.h"
#include "lib/config/presets.h"
#include "lib/config/removed.h"
#include "lib/config/yaml_reader.h"

namespace tri {
namespace {

const Section* find_section(const std::string& name) {
  for (const Section& section : config_sections())
    if (section.name == name) return &section;
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

// Returns "did you mean run.steps?", or what replaces a setting of other programs; "" if the name is unknown.
std::string known_elsewhere(const std::string& name) {
  const Counterpart here = counterpart_of(name);
  return here.fields.empty() ? std::string(here.remark) : fmt::format("did you mean {}?", to_string(here));
}

// The keys of another program's section that have counterparts here, whatever the section's name.
class KnownKeys {
 public:
  KnownKeys(const std::string& section, const YAML::Node& map) { add(section, "", map); }

  bool none() const { return fields_.empty() && remarks_.empty(); }
  // Returns "here its lr is lr.peak, its params.betas is optimizer.beta1 (...); devices: srun, ...; unknown: speed".
  std::string text() const {
    std::vector<std::string> parts;
    if (!fields_.empty()) parts.push_back(fmt::format("here {}", fmt::join(fields_, ", ")));
    parts.insert(parts.end(), remarks_.begin(), remarks_.end());
    if (!unknown_.empty()) parts.push_back(fmt::format("unknown: {}", fmt::join(unknown_, ", ")));
    return fmt::format("{}", fmt::join(parts, "; "));
  }

 private:
  // Whether a key of `map`, which is at `path`, is known. Limits the depth: a file may be deep, or recursive through
  // anchors.
  bool add(const std::string& section, const std::string& path, const YAML::Node& map) {
    constexpr long kDeepest = 4;
    bool any = false;
    if (std::count(path.begin(), path.end(), '.') >= kDeepest) return false;
    for (const auto& pair : map) {
      if (!pair.first.IsScalar() || --keys_left_ < 0) continue;
      const std::string key = path + pair.first.Scalar();
      const bool is_merge = pair.first.Scalar() == "<<";
      const size_t unknown_before = unknown_.size();
      if (pair.second.IsMap() && add(section, is_merge ? path : key + ".", pair.second)) {
        any = true;
        continue;
      }
      unknown_.resize(unknown_before);  // the map stands for its contents
      any = add_key(section, key) || any;
    }
    return any;
  }

  bool add_key(const std::string& section, const std::string& key) {
    const Counterpart here = counterpart_of(section + "." + key);
    if (!here.fields.empty())
      fields_.push_back(fmt::format("its {} is {}", key, to_string(here)));
    else if (here.known())
      remarks_.push_back(fmt::format("{}: {}", key, here.remark));
    else
      unknown_.push_back(key);
    return here.known();
  }

  int keys_left_ = 1000;
  std::vector<std::string> fields_, remarks_, unknown_;
};

bool has_key_of(const YAML::Node& map, const Section& section) {
  for (const auto& pair : map)
    if (pair.first.IsScalar() && find_field(section.name + "." + pair.first.Scalar())) return true;
  return false;
}

// For a misspelt section the message suggests its name. For another program's section it lists the counterparts of its
// keys; such names may be similar to a name here: "activation_checkpoint", "parallelism".
std::string unknown_section(const std::string& name, const YAML::Node& value) {
  if (const Field* field = find_field(name))
    return fmt::format("{}: sections and keys are on different lines in a file; write {}: {{{}: {}}}", name,
                       field->section, field->key, value.IsScalar() ? value.Scalar() : "VALUE");
  const std::string near = nearest(name, section_names()), elsewhere = known_elsewhere(name);
  std::string advice = elsewhere;
  if (advice.empty() && !near.empty()) advice = "did you mean " + near + "?";
  if (advice.empty()) advice = fmt::format("the sections are {}", fmt::join(section_names(), ", "));
  const bool is_misspelt =
      elsewhere.empty() && !near.empty() && value.IsMap() && has_key_of(value, *find_section(near));
  if (value.IsMap() && !is_misspelt)
    if (const KnownKeys known(name, value); !known.none()) advice = known.text();
  return name + ": unknown section; " + advice;
}

// For --set, which names section and field together.
std::string unknown_section_of(const std::string& field) {
  const std::string name = field.substr(0, field.find('.')), near = nearest(name, section_names());
  const std::string elsewhere = near.empty() || counterpart_of(name).known() ? known_elsewhere(field) : "";
  return elsewhere.empty() ? unknown_section(name, YAML::Node()) : name + ": unknown section; " + elsewhere;
}

std::string unknown_key(const Section& section, const std::string& key, const YAML::Node& value) {
  const std::string near = nearest(key, keys_of(section));
  std::string advice = known_elsewhere(section.name + "." + key);  // "num_attention_heads" contains "attention"
  if (value.IsMap())
    if (const KnownKeys known(section.name + "." + key, value); !known.none()) advice = known.text();
  if (advice.empty() && !near.empty()) advice = "did you mean " + section.name + "." + near + "?";
  if (advice.empty()) advice = fmt::format("the keys of {} are {}", section.name, fmt::join(keys_of(section), ", "));
  return section.name + "." + key + ": unknown key; " + advice;
}

// If the name is a preset's, returns how to obtain it; else "".
std::string preset_named(const std::string& path) {
  const std::string name = std::filesystem::path(path).stem().string();
  for (const Preset& preset : presets())
    if (preset.name == name)
      return fmt::format(
          "; {0} is a preset: trireme config new --model {0} --gpus N --output my.yaml writes a config from it", name);
  return "";
}

// If a section is given a single value ("lr: 3e-4"), the user most likely meant one of these fields, tried in this
// order.
constexpr std::string_view kMeantBySections[] = {
    "run.steps", "run.name", "data.sources",   "precision.compute", "precision.gemm",
    "lr.peak",   "lr.rule",  "optimizer.name", "checkpoint.every",  "checkpoint.dir"};

struct MeantField {
  const Field* field = nullptr;  // null: no field of the section takes the value
  std::string value;             // as written in a file
};

MeantField meant_by(const Section& section, const YAML::Node& value) {
  for (const std::string_view name : kMeantBySections) {
    const Field& field = *find_field(name);
    if (field.section != section.name || !value.IsScalar()) continue;
    YAML::Node list(YAML::NodeType::Sequence);
    list.push_back(value);
    Config scratch;
    std::vector<Problem> problems;
    field.read(field.kind == FieldKind::kSources ? list : value, field.rule, scratch, problems);
    if (problems.empty()) return {&field, field.print(scratch)};
  }
  return {};
}

std::string value_of_section(const Section& section, const YAML::Node& value) {
  if (const MeantField meant = meant_by(section, value); meant.field)
    return fmt::format("{0}: is a section; did you mean {0}: {{{1}: {2}}}?", section.name, meant.field->key,
                       meant.value);
  const std::string preset = value.IsScalar() ? preset_named(value.Scalar()) : "";
  return fmt::format("{}: is a section; put its keys on lines of their own below it, as key: value{}", section.name,
                     preset);
}

// Returns the first line of a file that is not UTF-8, or 0. UTF-16 and UTF-32 with a byte order mark are also accepted.
int line_not_utf8(std::string_view text) {
  for (const std::string_view mark :
       {std::string_view("\xFF\xFE"), std::string_view("\xFE\xFF"), std::string_view("\0\0\xFE\xFF", 4)})
    if (text.starts_with(mark)) return 0;
  const size_t good = utf8_prefix(text);
  if (good == text.size()) return 0;
  return 1 + static_cast<int>(std::count(text.begin(), text.begin() + static_cast<std::ptrdiff_t>(good), '\n'));
}

// Reads files and overrides into one Config and collects the problems.
class Parser : YamlReader {
 public:
  // kSaved: the file is one that a run has saved, in which removed settings cause warnings.
  enum class Origin { kUser, kSaved };
  explicit Parser(const std::string& file_name, Origin origin = Origin::kUser)
      : YamlReader(file_name), origin_(origin) {}

  void read_file(std::string_view text) {
    if (file_name().ends_with(".toml"))
      return add(file_name(),
                 "TOML is not supported; write YAML: a section such as \"run:\", and its keys below it, as key: value");
    if (const int line = line_not_utf8(text); line > 0)
      return add(at_line(line), "not UTF-8 text; save the file as UTF-8, such as with iconv -f latin1 -t utf-8");
    const YAML::Node root = document(text);
    if (!root.IsNull()) read_document(root);  // else only defaults
  }

  void read_override(const std::string& text) {
    const std::string where = "--set " + text;
    if (utf8_prefix(text) < text.size()) return add(where, "not UTF-8 text; set the terminal's locale to UTF-8");
    const size_t equals = text.find('=');
    const std::string name = text.substr(0, equals), value = equals == text.npos ? "" : text.substr(equals + 1);
    const size_t dot = name.find('.');
    const std::string section_name = name.substr(0, dot);
    const Section* section = find_section(section_name);
    if (equals == text.npos || section_name.empty())
      return add(where, "expected section.key=value, such as run.steps=100");
    if (!section) return add(where, unknown_section_of(name));
    if (dot == name.npos) {
      const MeantField meant = meant_by(*section, YAML::Node(value));
      return add(where, meant.field ? fmt::format("{} is a section; did you mean {}={}?", name, meant.field->name(),
                                                  meant.field->is_text() ? value : meant.value)
                                    : "expected section.key=value, such as run.steps=100");
    }
    if (const RemovedSetting* removed = removed_setting(section_name, name.substr(dot + 1), value))
      return add(where, removed->text());
    const Field* field = find_field(name);
    if (!field) return add(where, unknown_key(*section, name.substr(dot + 1), YAML::Node()));
    try {
      if (!field->is_text() && YAML::LoadAll(value).size() > 1)
        return add(where, fmt::format("{}: more than one YAML document; give one value", name));
      read_field(*field, field->is_text() ? YAML::Node(value) : YAML::Load(value), [&](int) { return where; });
    } catch (const YAML::Exception& error) {
      add(where, fmt::format("{}: not valid YAML: {}", name, error.msg));
    }
  }

  Result<Config> finish() && {
    // A default that was given on purpose is refused like any other value (resolve_config).
    if (!has_errors() && origin_ == Origin::kUser) {
      if (given_.contains("run.steps") && config_.run.steps == RunConfig{}.steps)
        refuse(given_["run.steps"], steps_conflict(config_));
      if (given_.contains("data.global_batch") && config_.data.global_batch == DataConfig{}.global_batch)
        refuse(given_["data.global_batch"], batch_conflict(config_));
    }
    if (has_errors()) return all_errors();
    return std::move(config_);
  }

 private:
  void refuse(const std::string& where, const std::string& problem) {
    if (!problem.empty()) add(where, problem);
  }

  void read_document(const YAML::Node& root) {
    if (!root.IsMap())
      return add(at_line(root.Mark().line + 1), fmt::format("expected sections, such as \"run:\"; the sections are {}",
                                                            fmt::join(section_names(), ", ")));
    each_pair(root, "", [&](const YamlPair& pair) {
      const auto& [name, line, node] = pair;
      if (name.starts_with("x-")) return;  // anchors to merge from
      const Section* section = find_section(name);
      if (!section)
        add(at_line(line), shows_more_errors() ? unknown_section(name, node) : name);  // computing the advice takes
                                                                                       // time
      else if (node.IsMap())
        read_section(*section, node);
      else if (!node.IsNull())  // a section without fields keeps its defaults
        add(at_line(line), value_of_section(*section, node));
    });
  }

  void read_section(const Section& section, const YAML::Node& map) {
    each_pair(map, section.name + ".", [&](const YamlPair& pair) {
      const auto& [key, line, node] = pair;
      const std::string value = node.IsScalar() ? node.Scalar() : "";
      if (const RemovedSetting* removed = removed_setting(section.name, key, value))
        read_removed(*removed, value, at_line(line));
      else if (const Field* field = find_field(section.name + "." + key))
        read_field(*field, node, [&](int own_line) { return at_line(own_line > 0 ? own_line : pair.line); });
      else
        add(at_line(line), shows_more_errors() ? unknown_key(section, key, node) : key);
    });
  }

  void read_removed(const RemovedSetting& removed, const std::string& value, const std::string& where) {
    if (!removed.neutral.empty() && removed.neutral == value) return;
    const std::string name = fmt::format("{}.{}: {}", removed.section, removed.key, value);
    if (origin_ == Origin::kSaved)
      log_warn_alike("{}: {} was removed: {}", where, readable_text(name), removed.now);
    else
      add(where, fmt::format("{} {}", name, removed.text()));
  }

  template <class Where>
  void read_field(const Field& field, const YAML::Node& node, Where where) {
    std::vector<Problem> problems;
    field.read(node, field.rule, config_, problems);
    given_[field.name()] = where(0);
    for (const Problem& problem : problems) {
      // for example "run.steps: 0 is out of range", "data.sources[1].weight: ..."
      add(where(problem.line), fmt::format("{}{}: {}", field.name(), problem.part, problem.text));
    }
  }

  const Origin origin_;
  Config config_;
  std::map<std::string, std::string> given_;  // where each field was set last
};

}  // namespace

Result<std::string> read_config_text(const std::string& path) {
  std::error_code ignored;
  if (std::filesystem::is_directory(path, ignored)) {
    const std::string of_run = (std::filesystem::path(path) / "config.yaml").string();
    return usage_error("{}: is a folder; name a config file{}", path,
                       std::filesystem::exists(of_run, ignored) ? ", such as " + of_run : "");
  }
  auto text = read_text(path);
  if (text) return text;
  return usage_error("{}: cannot read the config: {}{}", path, std::strerror(text.error().os_error),
                     preset_named(path));
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

Result<Config> parse_saved_config(std::string_view yaml_text, const std::string& file_name) {
  Parser parser(file_name, Parser::Origin::kSaved);
  parser.read_file(yaml_text);
  return std::move(parser).finish();
}

}  // namespace tri
