#include "lib/simulate/cluster.h"

#include <fmt/ranges.h>
#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <map>
#include <set>

#include "lib/config/nearest.h"
#include "lib/config/removed.h"
#include "lib/config/value.h"
#include "lib/config/yaml_reader.h"

namespace tri {
namespace {

struct Constant {
  std::string section, key;
  ValueRule rule;
  std::string_view meaning;
  void (*read)(const YAML::Node& node, const ValueRule& rule, Cluster& cluster, std::vector<Problem>& problems);
  std::string (*print)(const Cluster& cluster);

  std::string name() const { return section + "." + key; }
};

struct ConstantSection {
  std::string name, title;
};

struct Constants {
  std::vector<ConstantSection> sections;
  std::vector<Constant> rows;
};

template <class T>
ValueRule make_rule(const Allowed& allowed, const T& default_value) {
  return {allowed, describe<T>(allowed), print_value(default_value)};
}

// Rejects values that no machine reaches, because they could overflow. The field's own rule decides about 0.
void check_size(double value, std::vector<Problem>& problems) {
  constexpr double kLeast = 1e-30, kMost = 1e30;
  if (value != 0 && (value < kLeast || value > kMost))
    problems.push_back({.text = fmt::format("{} is out of range; expected a number from {} to {}", print_value(value),
                                            print_value(kLeast), print_value(kMost))});
}

template <class T>
void check_size(const T&, std::vector<Problem>&) {}

Constants make_constants() {
  Constants all;
#define SECTION(type, member, title)            \
  {                                             \
    constexpr auto kSection = &Cluster::member; \
    using SectionType = type;                   \
    const std::string section = #member;        \
    all.sections.push_back({section, title});
#define FIELD(type, member, default_value, allowed, meaning)                                                 \
  all.rows.push_back(                                                                                        \
      {section, #member, make_rule<type>(allowed, SectionType{}.member), meaning,                            \
       [](const YAML::Node& node, const ValueRule& rule, Cluster& cluster, std::vector<Problem>& problems) { \
         read_value(node, rule, (cluster.*kSection).member, problems);                                       \
         check_size((cluster.*kSection).member, problems);                                                   \
       },                                                                                                    \
       [](const Cluster& cluster) { return print_value((cluster.*kSection).member); }});
#define END_SECTION(type) }
#include "lib/simulate/cluster_fields.def"
  return all;
}

const Constants& constants() {
  static const Constants all = make_constants();
  return all;
}

constexpr const char* kGemms = "gemms";
constexpr const char* kUncertainty = "uncertainty";

std::vector<std::string> section_names() {
  std::vector<std::string> names;
  for (const ConstantSection& section : constants().sections) names.push_back(section.name);
  return names;
}

std::vector<std::string> keys_of(const std::string& section) {
  std::vector<std::string> keys;
  for (const Constant& row : constants().rows)
    if (row.section == section) keys.push_back(row.key);
  return keys;
}

const Constant* find_constant(const std::string& section, const std::string& key) {
  for (const Constant& row : constants().rows)
    if (row.section == section && row.key == key) return &row;
  return nullptr;
}

// Constants of earlier versions. Files contain them with their neutral value, which is ignored.
constexpr RemovedSetting kRemoved[] = {
    {.section = "software",
     .key = "fixed_s",
     .neutral = "0",
     .reason = "no measured step has a constant time, whatever the model",
     .now = "software.layer_us is the time per layer and microbatch that no other constant covers",
     .remedy = "delete the line"},
    {.section = "software",
     .key = "attention_cached",
     .neutral = "0",
     .reason = "it described the memory traffic of an earlier attention kernel",
     .now = "software.attention_backward and attention_ramp_backward hold at any length",
     .remedy = "delete the line"}};

const RemovedSetting* removed_constant(std::string_view section, std::string_view key) {
  const auto* const found = std::ranges::find_if(
      kRemoved, [&](const RemovedSetting& removed) { return removed.section == section && removed.key == key; });
  return found == std::end(kRemoved) ? nullptr : found;
}

// Returns "did you mean ...?", or lists the known names.
std::string advice(const std::string& word, const std::string& prefix, const std::vector<std::string>& known,
                   const std::string& what) {
  if (const std::string near = nearest(word, known); !near.empty()) return "did you mean " + prefix + near + "?";
  for (const Constant& row : constants().rows)
    if (row.key == word) return "did you mean " + row.name() + "?";
  return fmt::format("the {} are {}", what, fmt::join(known, ", "));
}

class ClusterParser : YamlReader {
 public:
  explicit ClusterParser(const std::string& file_name) : YamlReader(file_name) {}

  void read_file(std::string_view text) {
    const YAML::Node root = document(text);
    if (root.IsNull() && !has_errors())
      return add(file_name(), fmt::format("the file has no sections, so it describes no machines; the sections are {}",
                                          fmt::join(section_names(), ", ")));
    if (root.IsNull()) return;
    if (!root.IsMap())
      return add(
          at_line(root.Mark().line + 1),
          fmt::format("expected sections, such as \"device:\"; the sections are {}", fmt::join(section_names(), ", ")));
    each_pair(root, "", [&](const YamlPair& pair) { read_top(pair.key, at_line(pair.line), pair.value); });
  }

  void read_override(const std::string& text) {
    const std::string where = "--cluster-set " + text;
    const size_t equals = text.find('='), dot = text.find('.');
    if (equals == text.npos || dot == text.npos || dot > equals) {
      for (const Constant& row : constants().rows)
        if (equals != text.npos && row.key == text.substr(0, equals))
          return add(where, "did you mean " + row.name() + text.substr(equals) + "?");
      return add(where, "expected section.key=value, such as node.ranks=8");
    }
    const std::string section = text.substr(0, dot), key = text.substr(dot + 1, equals - dot - 1);
    if (std::ranges::count(section_names(), section) == 0)
      return add(where, section + ": unknown section; " + advice(section, "", section_names(), "sections"));
    try {
      read_constant(section, key, YAML::Load(text.substr(equals + 1)), where);
    } catch (const YAML::Exception& error) {
      add(where, "not valid YAML: " + error.msg);
    }
  }

  Result<Cluster> finish() && {
    if (has_errors()) return all_errors();
    for (const Constant& row : constants().rows)
      if (!given_.contains(row.name())) cluster_.defaults.push_back(row.name());
    return std::move(cluster_);
  }

 private:
  std::string at(const YAML::Node& node) const { return at_line(node.Mark().line + 1); }

  void read_top(const std::string& name, const std::string& where, const YAML::Node& node) {
    if (name.starts_with("x-")) return;  // anchors to merge from
    if (name == kGemms) return read_gemms(node);
    if (name == kUncertainty) {
      std::vector<Problem> problems;
      read_value(node, make_rule<double>(within(0, 1), 0.0), cluster_.uncertainty, problems);
      for (const Problem& problem : problems) add(where, name + ": " + problem.text);
      return;
    }
    if (std::ranges::count(section_names(), name) == 0)
      return add(where, name + ": unknown section; " + advice(name, "", section_names(), "sections"));
    if (node.IsNull()) return;
    if (!node.IsMap())
      return add(where, name + ": is a section; put its keys on lines of their own below it, as key: value");
    each_pair(node, name + ".",
              [&](const YamlPair& pair) { read_constant(name, pair.key, pair.value, at_line(pair.line)); });
  }

  void read_constant(const std::string& section, const std::string& key, const YAML::Node& node,
                     const std::string& where) {
    if (const RemovedSetting* removed = removed_constant(section, key)) return read_removed(*removed, node, where);
    const Constant* row = find_constant(section, key);
    if (!row)
      return add(where, fmt::format("{}.{}: unknown key; {}", section, key,
                                    advice(key, section + ".", keys_of(section), "keys of " + section)));
    std::vector<Problem> problems;
    row->read(node, row->rule, cluster_, problems);
    for (const Problem& problem : problems) add(where, row->name() + problem.part + ": " + problem.text);
    given_.insert(row->name());
  }

  void read_removed(const RemovedSetting& removed, const YAML::Node& node, const std::string& where) {
    double value = 0;
    std::vector<Problem> problems;
    read_value(node, make_rule<double>(at_least(0), 0.0), value, problems);
    if (!problems.empty() || print_value(value) != removed.neutral)
      add(where, fmt::format("{}.{} {}", removed.section, removed.key, removed.text()));
  }

  // A list of [m, n, k, tflops, scatter].
  void read_gemms(const YAML::Node& node) {
    const std::string expected =
        "expected a list of [m, n, k, tflops, scatter], as `trireme bench calibrate` writes it";
    if (!node.IsSequence()) return add(at(node), "gemms: " + expected);
    for (const YAML::Node& row : node) {
      std::vector<double> values;
      std::vector<Problem> problems;
      const ValueRule rule = make_rule<double>(at_least(0), 0.0);
      if (row.IsSequence())
        for (const YAML::Node& value : row) {
          read_value(value, rule, values.emplace_back(), problems);
          check_size(values.back(), problems);
        }
      if (!problems.empty() || values.size() != 5 || std::min({values[0], values[1], values[2], values[3]}) <= 0)
        add(at(row), "gemms: " + expected);
      else
        cluster_.gemms.push_back({values[0], values[1], values[2], values[3], values[4]});
    }
  }

  Cluster cluster_;
  std::set<std::string> given_;
};

}  // namespace

Result<Cluster> parse_cluster(std::string_view yaml_text, const std::string& file_name,
                              const std::vector<std::string>& overrides) {
  ClusterParser parser(file_name);
  parser.read_file(yaml_text);
  for (const std::string& text : overrides) parser.read_override(text);
  return std::move(parser).finish();
}

Result<Cluster> read_cluster(const std::string& path, const std::vector<std::string>& overrides) {
  auto text = read_config_text(path);
  if (!text)
    return usage_error(
        "{}; expected a cluster file: choose one from configs/clusters/, or write one with `trireme bench calibrate`",
        text.error().message);
  auto cluster = parse_cluster(text.value(), path, overrides);
  if (!cluster && !parse_cluster(text.value(), path, {}) && parse_config(text.value(), path, {}))
    return usage_error("{}: this is a run config; --cluster needs a cluster file, such as one of configs/clusters/",
                       path);
  return cluster;
}

Result<Config> read_run_config(const std::string& path, const std::vector<std::string>& overrides) {
  const auto text = read_config_text(path);
  if (!text) return text.error();
  auto config = parse_config(text.value(), path, overrides);
  if (!config && parse_cluster(text.value(), path, {}))
    return usage_error(
        "{}: this is a cluster file, which --cluster needs; CONFIG is a run config, such as those in configs/", path);
  return config;
}

std::string to_yaml(const Cluster& cluster) {
  std::string text;
  for (const ConstantSection& section : constants().sections) {
    text += fmt::format("{}:  # {}\n", section.name, section.title);
    for (const Constant& row : constants().rows)
      if (row.section == section.name) text += fmt::format("  {}: {}\n", row.key, row.print(cluster));
    text += "\n";
  }
  text += fmt::format("{}: {}\n", kUncertainty, print_value(cluster.uncertainty));
  if (cluster.gemms.empty()) return text;
  text += fmt::format("{}:  # [m, n, k, TFLOP/s, scatter]\n", kGemms);
  for (const MeasuredGemm& gemm : cluster.gemms)
    text += fmt::format("  - [{}, {}, {}, {}, {}]\n", print_value(gemm.m), print_value(gemm.n), print_value(gemm.k),
                        print_value(gemm.tflops), print_value(gemm.scatter));
  return text;
}

std::string cluster_help() {
  std::string text;
  for (const ConstantSection& section : constants().sections) {
    text += fmt::format("{}: {}\n", section.name, section.title);
    for (const Constant& row : constants().rows)
      if (row.section == section.name)
        text += fmt::format("  {} ({}; default {})\n      {}\n", row.key, row.rule.allowed_text, row.rule.default_text,
                            row.meaning);
  }
  return text;
}

}  // namespace tri
