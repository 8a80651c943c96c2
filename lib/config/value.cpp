#include "lib/config/value.h"

#include <fmt/ranges.h>
#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <cctype>
#include <charconv>
#include <cmath>
#include <functional>

#include "io/net/text_server.h"
#include "io/tokens/utf8.h"
#include "lib/config/batch_sizes.h"
#include "lib/config/environment.h"
#include "lib/config/layer_counts.h"
#include "lib/config/nearest.h"
#include "lib/config/step_range.h"
#include "lib/config/yaml_map.h"

namespace tri {
namespace {

bool is_quoted(const YAML::Node& node) { return node.Tag() == "!"; }  // yaml-cpp's tag of a quoted scalar

// Returns the scalar as the user wrote it, on one line and shortened.
std::string shown(const YAML::Node& node) {
  constexpr size_t kLongest = 40;
  std::string text = node.Scalar();
  if (text.size() > kLongest) {
    size_t end = kLongest;
    while (end > 0 && (text[end] & 0xC0) == 0x80) --end;  // do not split a UTF-8 sequence
    text = text.substr(0, end) + "...";
  }
  return is_quoted(node) ? print_value(text) : text;
}

void report(std::vector<Problem>& problems, const ValueRule& rule, const std::string& what, std::string remedy = "") {
  if (remedy.empty())
    remedy = rule.default_text.empty() ? "there is no default" : "the default is " + rule.default_text;
  problems.push_back({.text = fmt::format("{}; allowed: {}; {}", what, rule.allowed_text, remedy)});
}

bool is_scalar(const YAML::Node& node, const ValueRule& rule, std::vector<Problem>& problems) {
  if (node.IsScalar()) return true;
  report(problems, rule,
         node.IsSequence() ? "is a list, not a single value"
         : node.IsMap()    ? "is a map, not a single value"
                           : "has no value");
  return false;
}

bool in_range(double value, const Allowed& allowed) {
  return (allowed.includes_low ? value >= allowed.low : value > allowed.low) &&
         (allowed.includes_high ? value <= allowed.high : value < allowed.high);
}

// Suggests the nearest bound that is itself allowed; returns "" if there is none.
std::string try_bound(double value, const Allowed& allowed) {
  const double bound = value <= allowed.low ? allowed.low : allowed.high;
  return in_range(bound, allowed) && std::isfinite(bound) ? "try " + print_value(bound) : "";
}

// Parses all of `text` as a T; returns errc::invalid_argument if anything is left over.
template <class T>
std::errc parse_all(std::string_view text, T& value) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error == std::errc::invalid_argument || end != text.data() + text.size()) return std::errc::invalid_argument;
  return error;
}

// Guesses the number meant by 1_000, 1.5, +3 or 1e3 where an integer is required; NaN if there is no guess.
double as_loose_number(std::string text) {
  std::erase(text, '_');
  if (text.starts_with('+')) text.erase(0, 1);
  double value = 0;
  return parse_all(text, value) == std::errc() ? value : std::nan("");
}

template <class T>
void read_number(const YAML::Node& node, const ValueRule& rule, T& out, std::vector<Problem>& problems) {
  constexpr bool kInteger = std::is_integral_v<T>;
  constexpr const char* kNoun = kInteger ? "an integer" : "a number";
  if (!is_scalar(node, rule, problems)) return;

  const std::string& text = node.Scalar();
  T value{};
  std::errc error = parse_all(text, value);
  const double loose = as_loose_number(text);
  if (is_quoted(node))
    return report(problems, rule, fmt::format("{} is text, not {}", shown(node), kNoun),
                  error == std::errc() ? "remove the quotes" : "");
  // from_chars rejects "-1" as an unsigned number, and accepts "inf" and "nan".
  const bool negative_integer =
      kInteger && text.starts_with('-') && text.find_first_not_of("0123456789", 1) == text.npos;
  if (error == std::errc::invalid_argument && negative_integer && text.size() > 1)
    error = std::errc::result_out_of_range;
  if (error == std::errc::invalid_argument || (!kInteger && error == std::errc() && !std::isfinite(double(value)))) {
    const double guess = kInteger ? std::round(loose) : loose;
    const bool fits = std::abs(guess) < 1e15 && in_range(guess, rule.allowed);
    return report(problems, rule, fmt::format("{} is not {}", shown(node), kNoun),
                  fits ? "try " + print_value(guess) : "");
  }
  const double size = error == std::errc() ? static_cast<double>(value) : loose;
  if (!in_range(size, rule.allowed))
    return report(problems, rule, shown(node) + " is out of range", try_bound(size, rule.allowed));
  if (error != std::errc())
    return report(problems, rule, shown(node) + " is out of range",
                  kInteger ? "the largest is " + print_value(std::numeric_limits<T>::max()) : "");
  out = value;
}

std::string name_advice(const std::string& text) {
  std::string good;
  for (const char c : text) good += std::isalnum(static_cast<unsigned char>(c)) || c == '.' || c == '-' ? c : '_';
  return good.find_first_not_of("._") == good.npos ? "" : "try " + good;
}

bool is_file_name(const std::string& text) {
  const bool good_letters = std::all_of(text.begin(), text.end(), [](unsigned char c) {
    return c < 0x80 && (std::isalnum(c) || c == '.' || c == '-' || c == '_');
  });
  return good_letters && text.find_first_not_of('.') != text.npos;  // rejects "", "." and ".."
}

int line_of(const YAML::Node& node) { return node.Mark().line + 1; }

// A key of an entry of a list, and how its value is read.
struct EntryKey {
  std::string name;
  std::function<void(const YAML::Node& value, std::vector<Problem>& problems)> read;
  bool required = false;
};

// Reads `node`, the entry `part` of a list; `example` shows how to write one.
void read_entry(const YAML::Node& node, const std::string& part, const std::string& what, const std::string& example,
                const std::vector<EntryKey>& keys, std::vector<Problem>& problems) {
  std::vector<std::string> names, seen;
  for (const EntryKey& key : keys) names.push_back(key.name);
  for (const YamlPair& pair : yaml_pairs(node, part + ".", problems)) {
    std::vector<Problem> found;
    const auto key = std::ranges::find(keys, pair.key, &EntryKey::name);
    const std::string near = nearest(pair.key, names);
    if (key != keys.end())
      key->read(pair.value, found);
    else
      found.push_back({.text = near.empty()
                                   ? fmt::format("unknown key; the keys of a {} are {}", what, fmt::join(names, ", "))
                                   : "unknown key; did you mean " + near + "?"});
    for (Problem& problem : found)
      problems.push_back({pair.line, part + "." + pair.key + problem.part, std::move(problem.text)});
    seen.push_back(pair.key);
  }
  for (const EntryKey& key : keys)
    if (key.required && std::ranges::find(seen, key.name) == seen.end())
      problems.push_back({line_of(node), part, fmt::format("has no {}; write {}", key.name, example)});
}

const ValueRule kPathRule{some_path(), describe_text(some_path()), ""};

EntryKey path_key(const std::string& name, std::string& out) {
  return {
      name,
      [&out](const YAML::Node& value, std::vector<Problem>& problems) { read_value(value, kPathRule, out, problems); },
      true};
}

void read_source_map(const YAML::Node& node, const std::string& part, Source& out, std::vector<Problem>& problems) {
  const auto weight = [&](const YAML::Node& value, std::vector<Problem>& found) {
    read_value(value, {above(0), describe_range("number", above(0)), "1"}, out.weight, found);
  };
  read_entry(node, part, "source", "{path: FILE, weight: NUMBER}", {path_key("path", out.path), {"weight", weight}},
             problems);
}

// Reads a list of single values into `out`.
template <class T>
void read_list(const YAML::Node& node, const ValueRule& rule, const char* example, std::vector<T>& out,
               std::vector<Problem>& problems) {
  if (!node.IsSequence()) return problems.push_back({.text = fmt::format("is not a list; write {}", example)});
  for (size_t i = 0; i < node.size(); ++i) {
    std::vector<Problem> found;
    read_value(node[i], rule, out.emplace_back(), found);
    for (Problem& problem : found)
      problems.push_back({.part = fmt::format("[{}]", i), .text = std::move(problem.text)});
  }
}

// Reads a list of maps, each with read(entry, part, out, problems). `example` shows how to write an entry.
template <class T, class Read>
void read_maps(const YAML::Node& node, const ValueRule& rule, const std::string& example, Read read,
               std::vector<T>& out, std::vector<Problem>& problems) {
  if (!node.IsSequence())
    return report(problems, rule, node.IsMap() ? "is a map, not a list" : "is not a list",
                  node.IsNull() ? "write [] for none" : fmt::format("write [{}]", example));
  std::vector<T> entries;
  const size_t problems_before = problems.size();
  for (size_t i = 0; i < node.size(); ++i) {
    const std::string part = fmt::format("[{}]", i);
    if (node[i].IsMap())
      read(node[i], part, entries.emplace_back(), problems);
    else
      problems.push_back({node[i].IsNull() ? 0 : line_of(node[i]), part, "is not a map; write " + example});
  }
  if (problems.size() == problems_before) out = std::move(entries);
}

}  // namespace

void read_value(const YAML::Node& node, const ValueRule& rule, int& out, std::vector<Problem>& problems) {
  read_number(node, rule, out, problems);
}
void read_value(const YAML::Node& node, const ValueRule& rule, int64_t& out, std::vector<Problem>& problems) {
  if (rule.allowed.suffixes && node.IsScalar() && !is_quoted(node))
    if (const auto count = parse_count(node.Scalar())) {
      out = *count;
      return;
    }
  read_number(node, rule, out, problems);
}
void read_value(const YAML::Node& node, const ValueRule& rule, uint64_t& out, std::vector<Problem>& problems) {
  read_number(node, rule, out, problems);
}
void read_value(const YAML::Node& node, const ValueRule& rule, double& out, std::vector<Problem>& problems) {
  read_number(node, rule, out, problems);
}

void read_value(const YAML::Node& node, const ValueRule& rule, bool& out, std::vector<Problem>& problems) {
  if (!is_scalar(node, rule, problems)) return;
  const std::string& text = node.Scalar();
  const bool known = text == "true" || text == "false";
  if (known && !is_quoted(node)) {
    out = text == "true";
    return;
  }
  report(problems, rule, is_quoted(node) ? shown(node) + " is text, not a boolean" : shown(node) + " is not a boolean",
         known ? "remove the quotes" : "");
}

void read_value(const YAML::Node& node, const ValueRule& rule, std::string& out, std::vector<Problem>& problems) {
  std::string text;
  if (rule.allowed.text == TextRule::kLayerCounts && node.IsSequence()) {  // [9, 9, 8]
    for (const YAML::Node& count : node) text += (text.empty() ? "" : ",") + (count.IsScalar() ? count.Scalar() : "?");
  } else {
    if (!is_scalar(node, rule, problems)) return;
    text = node.Scalar();
  }
  if (rule.allowed.expands) {
    auto expanded = expand_environment(text);
    if (!expanded) return problems.push_back({.text = shown(node) + ": " + expanded.error().message});
    text = std::move(expanded).value();
  }
  // A checkpoint stores the config as JSON.
  if (utf8_prefix(text) < text.size())
    return problems.push_back(
        {.text =
             shown(node) +
             ": its value is not UTF-8 text, which checkpoints require; rename the folder, or change the environment "
             "variable"});
  if (rule.allowed.text == TextRule::kFileName && !is_file_name(text))
    return report(problems, rule, print_value(text) + " is not a file name", name_advice(text));
  if (rule.allowed.text == TextRule::kNotEmpty && text.empty()) return report(problems, rule, "\"\" is empty");
  if (rule.allowed.text == TextRule::kHostAndPort && !text.empty() && !parse_host_and_port(text))
    return report(problems, rule, print_value(text) + " is not an address", "try 127.0.0.1:9400");
  if (rule.allowed.text == TextRule::kStepRange && !text.empty() && !parse_step_range(text))
    return report(problems, rule, print_value(text) + " is not a range of steps", "try 20:22");
  if (rule.allowed.text == TextRule::kBatchRamp && !text.empty() && !parse_batch_ramp(text))
    return report(problems, rule, print_value(text) + " is not a ramp", "try 0:768 250B:1536");
  if (rule.allowed.text == TextRule::kLayerCounts && text != kEvenLayers && text != kAutoLayers &&
      !parse_layer_counts(text))
    return report(problems, rule, print_value(text) + " is not a list of numbers of layers", "try auto");
  out = std::move(text);
}

void read_value(const YAML::Node& node, const ValueRule& rule, std::vector<Source>& out,
                std::vector<Problem>& problems) {
  if (!node.IsSequence()) {
    if (node.IsScalar())
      return report(problems, rule, shown(node) + " is not a list", fmt::format("write [{}]", shown(node)));
    if (node.IsMap()) return report(problems, rule, "is a map, not a list", "write [{path: FILE, weight: NUMBER}]");
    return report(problems, rule, "has no value", "write [] for none");
  }
  std::vector<Source> sources;
  const size_t problems_before = problems.size();
  for (size_t i = 0; i < node.size(); ++i) {
    const YAML::Node& entry = node[i];
    const std::string part = fmt::format("[{}]", i);
    Source& source = sources.emplace_back();
    if (entry.IsMap()) {
      read_source_map(entry, part, source, problems);
    } else if (entry.IsScalar() && !entry.Scalar().empty()) {
      std::vector<Problem> found;
      read_value(entry, {some_path(), describe_text(some_path()), ""}, source.path, found);
      for (Problem& problem : found) problems.push_back({line_of(entry), part, std::move(problem.text)});
    } else {
      const int line = entry.IsNull() ? 0 : line_of(entry);  // yaml-cpp gives an empty entry no line
      problems.push_back({line, part, "is not a source; write a path or {path: FILE, weight: NUMBER}"});
    }
  }
  if (problems.size() == problems_before) out = std::move(sources);
}

void read_value(const YAML::Node& node, const ValueRule& rule, std::vector<DataStage>& out,
                std::vector<Problem>& problems) {
  const std::string example = "{until_tokens: 250B, sources: [FILE, ...], weights: [NUMBER, ...]}";
  const auto read = [&](const YAML::Node& entry, const std::string& part, DataStage& stage,
                        std::vector<Problem>& found) {
    const auto until = [&](const YAML::Node& value, std::vector<Problem>& wrong) {
      read_value(value, {token_count(), describe_range("integer", token_count()), "the end of the run"},
                 stage.until_tokens, wrong);
    };
    const auto sources = [&](const YAML::Node& value, std::vector<Problem>& wrong) {
      read_list(value, kPathRule, "[FILE, ...]", stage.sources, wrong);
    };
    const auto weights = [&](const YAML::Node& value, std::vector<Problem>& wrong) {
      read_list(value, {above(0), describe_range("number", above(0)), "1"}, "[NUMBER, ...]", stage.weights, wrong);
    };
    read_entry(entry, part, "stage", example,
               {{"until_tokens", until}, {"sources", sources, true}, {"weights", weights}}, found);
  };
  read_maps(node, rule, example, read, out, problems);
}

void read_value(const YAML::Node& node, const ValueRule& rule, std::vector<NamedSource>& out,
                std::vector<Problem>& problems) {
  const std::string example = "{name: NAME, path: FILE}";
  const auto read = [&](const YAML::Node& entry, const std::string& part, NamedSource& source,
                        std::vector<Problem>& found) {
    const auto name = [&](const YAML::Node& value, std::vector<Problem>& wrong) {
      read_value(value, {file_name(), describe_text(file_name()), ""}, source.name, wrong);
    };
    read_entry(entry, part, "validation file", example, {{"name", name, true}, path_key("path", source.path)}, found);
  };
  read_maps(node, rule, example, read, out, problems);
}

std::vector<std::string> choices_of(std::string_view allowed_text) {
  std::vector<std::string> names(1);
  for (const char c : allowed_text) c == '|' ? (void)names.emplace_back() : names.back().push_back(c);
  return names;
}

std::optional<std::string> read_choice(const YAML::Node& node, const ValueRule& rule, std::vector<Problem>& problems) {
  if (!is_scalar(node, rule, problems)) return std::nullopt;
  const std::vector<std::string> names = choices_of(rule.allowed_text);
  const std::string& text = node.Scalar();
  if (std::find(names.begin(), names.end(), text) != names.end()) return text;
  const std::string near = nearest(text, names);
  report(problems, rule, shown(node) + " is not one of the choices", near.empty() ? "" : "did you mean " + near + "?");
  return std::nullopt;
}

std::optional<std::vector<std::string>> read_choices(const YAML::Node& node, const ValueRule& rule,
                                                     std::vector<Problem>& problems) {
  if (!node.IsSequence()) {
    if (node.IsScalar())
      report(problems, rule, shown(node) + " is not a list", fmt::format("write [{}]", shown(node)));
    else
      report(problems, rule, node.IsMap() ? "is a map, not a list" : "has no value", "write [] for none");
    return std::nullopt;
  }
  ValueRule of_one = rule;
  of_one.allowed_text.erase(0, kListOf.size());
  std::vector<std::string> names;
  const size_t problems_before = problems.size();
  for (size_t i = 0; i < node.size(); ++i) {
    std::vector<Problem> found;
    if (const auto name = read_choice(node[i], of_one, found)) names.push_back(*name);
    for (Problem& problem : found) {
      const int line = node[i].IsNull() ? 0 : line_of(node[i]);  // yaml-cpp gives an empty entry no line
      problems.push_back({line, fmt::format("[{}]", i), std::move(problem.text)});
    }
  }
  if (problems.size() > problems_before) return std::nullopt;
  return names;
}

std::string print_value(int value) { return fmt::format("{}", value); }
std::string print_value(int64_t value) { return fmt::format("{}", value); }
std::string print_value(uint64_t value) { return fmt::format("{}", value); }
std::string print_value(double value) { return fmt::format("{}", value); }
std::string print_value(bool value) { return value ? "true" : "false"; }

std::string print_value(const std::string& value) {
  std::string quoted = "\"";
  for (const char c : value) {
    if (c == '"' || c == '\\')
      quoted += {'\\', c};
    else if (c == '\n')
      quoted += "\\n";
    else if (c == '\t')
      quoted += "\\t";
    else if (static_cast<unsigned char>(c) < 0x20 || c == 0x7F)
      quoted += fmt::format("\\x{:02x}", static_cast<unsigned>(c));
    else
      quoted += c;
  }
  return quoted + '"';
}

std::string print_value(const std::vector<Source>& value) {
  std::string list;
  for (const Source& source : value) {
    if (!list.empty()) list += ", ";
    const std::string path = print_value(source.path);
    list += source.weight == 1 ? path : fmt::format("{{path: {}, weight: {}}}", path, print_value(source.weight));
  }
  return "[" + list + "]";
}

std::string print_value(const std::vector<DataStage>& value) {
  std::vector<std::string> stages;
  for (const DataStage& stage : value) {
    std::vector<std::string> paths;
    for (const std::string& path : stage.sources) paths.push_back(print_value(path));
    std::string text = stage.until_tokens == 0 ? "{" : fmt::format("{{until_tokens: {}, ", stage.until_tokens);
    text += fmt::format("sources: [{}]", fmt::join(paths, ", "));
    if (!stage.weights.empty()) text += fmt::format(", weights: [{}]", fmt::join(stage.weights, ", "));
    stages.push_back(text + "}");
  }
  return fmt::format("[{}]", fmt::join(stages, ", "));
}

std::string print_value(const std::vector<NamedSource>& value) {
  std::vector<std::string> list;
  for (const NamedSource& source : value)
    list.push_back(fmt::format("{{name: {}, path: {}}}", print_value(source.name), print_value(source.path)));
  return fmt::format("[{}]", fmt::join(list, ", "));
}

std::string describe_range(std::string_view noun, const Allowed& allowed) {
  const bool has_low = std::isfinite(allowed.low), has_high = std::isfinite(allowed.high);
  if (has_low && has_high)
    return fmt::format("{} in {}{}, {}{}", noun, allowed.includes_low ? '[' : '(', print_value(allowed.low),
                       print_value(allowed.high), allowed.includes_high ? ']' : ')');
  if (has_low)
    return fmt::format("{} {} {}{}", noun, allowed.includes_low ? ">=" : ">", print_value(allowed.low),
                       allowed.suffixes ? ", also such as 250B or 1.5T" : "");
  return std::string(noun);
}

std::string describe_text(const Allowed& allowed) {
  switch (allowed.text) {
    case TextRule::kAny:
      return allowed.expands ? "path" : "text";
    case TextRule::kNotEmpty:
      return allowed.expands ? "path, not empty" : "text, not empty";
    case TextRule::kFileName:
      return "letters, digits, '.', '_' and '-'";
    case TextRule::kHostAndPort:
      return "HOST:PORT or [ADDRESS]:PORT";
    case TextRule::kStepRange:
      return "FIRST:LAST, 1 <= FIRST <= LAST";
    case TextRule::kBatchRamp:
      return "0:SAMPLES TOKENS:SAMPLES ..., tokens ascending";
    case TextRule::kLayerCounts:
      return "even, auto or LAYERS,LAYERS,..., each at least 1, as 3xLAYERS for three equal ones";
  }
  return "";
}

}  // namespace tri
