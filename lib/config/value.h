// Values of config fields: strict parsing by type, printing that reads back equal, and descriptions.
#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "io/base/enum_names.h"
#include "lib/config/config.h"

namespace YAML {
class Node;
}

namespace tri {

enum class TextRule {
  kAny,
  kNotEmpty,
  kFileName,
  kHostAndPort,
  kStepRange,
  kBatchRamp,  // this and the two before it may also be empty
  kLayerCounts
};

// What a field accepts within its type.
struct Allowed {
  double low = -std::numeric_limits<double>::infinity();
  double high = std::numeric_limits<double>::infinity();
  bool includes_low = true, includes_high = true;
  std::string_view choices = {};  // a subset of an enum's names, "fp32|bf16"; empty: all
  TextRule text = TextRule::kAny;
  bool expands = false;   // text: a path or a name that may contain environment variables (environment.h)
  bool suffixes = false;  // integer: may end in k, M, B or T (parse_count in batch_sizes.h)
};

inline Allowed anything() { return {}; }
inline Allowed at_least(double low) { return {.low = low}; }
inline Allowed token_count() { return {.low = 0, .suffixes = true}; }
inline Allowed above(double low) { return {.low = low, .includes_low = false}; }
inline Allowed within(double low, double high) { return {.low = low, .high = high}; }
inline Allowed at_least_below(double low, double high) { return {.low = low, .high = high, .includes_high = false}; }
inline Allowed above_up_to(double low, double high) { return {.low = low, .high = high, .includes_low = false}; }
inline Allowed one_of(std::string_view choices) { return {.choices = choices}; }
inline Allowed not_empty() { return {.text = TextRule::kNotEmpty}; }
inline Allowed file_name() { return {.text = TextRule::kFileName, .expands = true}; }
inline Allowed path() { return {.expands = true}; }  // may be empty
inline Allowed some_path() { return {.text = TextRule::kNotEmpty, .expands = true}; }
inline Allowed host_and_port() { return {.text = TextRule::kHostAndPort}; }
inline Allowed step_range() { return {.text = TextRule::kStepRange}; }
inline Allowed batch_ramp() { return {.text = TextRule::kBatchRamp}; }
inline Allowed layer_counts() { return {.text = TextRule::kLayerCounts}; }

// What read_value checks and what its messages quote.
struct ValueRule {
  Allowed allowed;
  std::string allowed_text;  // "integer >= 1"
  std::string default_text;  // as printed by print_value; empty: none
};

struct Problem {
  int line = 0;           // of the offending part, 1-based; 0: the field's own line
  std::string part = "";  // "[1].weight"; empty: the field itself
  std::string text = "";  // what is wrong, what is allowed, and what to do
};

// Reads `node` into `out`, or leaves `out` unchanged and appends Problems.
void read_value(const YAML::Node& node, const ValueRule& rule, int& out, std::vector<Problem>& problems);
void read_value(const YAML::Node& node, const ValueRule& rule, int64_t& out, std::vector<Problem>& problems);
void read_value(const YAML::Node& node, const ValueRule& rule, uint64_t& out, std::vector<Problem>& problems);
void read_value(const YAML::Node& node, const ValueRule& rule, double& out, std::vector<Problem>& problems);
void read_value(const YAML::Node& node, const ValueRule& rule, bool& out, std::vector<Problem>& problems);
void read_value(const YAML::Node& node, const ValueRule& rule, std::string& out, std::vector<Problem>& problems);
void read_value(const YAML::Node& node, const ValueRule& rule, std::vector<Source>& out,
                std::vector<Problem>& problems);
void read_value(const YAML::Node& node, const ValueRule& rule, std::vector<DataStage>& out,
                std::vector<Problem>& problems);
void read_value(const YAML::Node& node, const ValueRule& rule, std::vector<NamedSource>& out,
                std::vector<Problem>& problems);

// Returns the names of a choice, "a|b|c".
std::vector<std::string> choices_of(std::string_view allowed_text);

// Returns the name in rule.allowed_text, "a|b|c", that the node contains; otherwise none, with a Problem.
std::optional<std::string> read_choice(const YAML::Node& node, const ValueRule& rule, std::vector<Problem>& problems);

template <class E>
requires std::is_enum_v<E>
void read_value(const YAML::Node& node, const ValueRule& rule, E& out, std::vector<Problem>& problems) {
  if (const auto name = read_choice(node, rule, problems)) out = *enum_from_name<E>(*name);
}

// A list of choices: rule.allowed_text is kListOf and "a|b|c".
inline constexpr std::string_view kListOf = "list of ";
template <class T>
inline constexpr bool is_list_of_choices = false;
template <class E>
inline constexpr bool is_list_of_choices<std::vector<E>> = std::is_enum_v<E>;

// Returns the names that the node lists; otherwise none, with Problems.
std::optional<std::vector<std::string>> read_choices(const YAML::Node& node, const ValueRule& rule,
                                                     std::vector<Problem>& problems);

template <class E>
requires std::is_enum_v<E>
void read_value(const YAML::Node& node, const ValueRule& rule, std::vector<E>& out, std::vector<Problem>& problems) {
  const auto names = read_choices(node, rule, problems);
  if (!names) return;
  out.clear();
  for (const std::string& name : *names) out.push_back(*enum_from_name<E>(name));
}

std::string print_value(int value);
std::string print_value(int64_t value);
std::string print_value(uint64_t value);
std::string print_value(double value);  // the shortest text that reads back equal
std::string print_value(bool value);
std::string print_value(const std::string& value);  // double-quoted, escaped, on one line
std::string print_value(const std::vector<Source>& value);
std::string print_value(const std::vector<DataStage>& value);
std::string print_value(const std::vector<NamedSource>& value);

template <class E>
requires std::is_enum_v<E> std::string print_value(E value) { return std::string(enum_name(value)); }

template <class E>
requires std::is_enum_v<E> std::string print_value(const std::vector<E>& value) {
  std::string list;
  for (const E each : value) list += (list.empty() ? "" : ", ") + print_value(each);
  return "[" + list + "]";
}

std::string describe_range(std::string_view noun, const Allowed& allowed);  // "integer in [1, 8]"
std::string describe_text(const Allowed& allowed);

template <class T>
std::string describe(const Allowed& allowed) {
  if constexpr (std::is_enum_v<T>)
    return allowed.choices.empty() ? enum_choices<T>() : std::string(allowed.choices);
  else if constexpr (std::is_same_v<T, bool>)
    return "true|false";
  else if constexpr (std::is_integral_v<T>)
    return describe_range("integer", allowed);
  else if constexpr (std::is_floating_point_v<T>)
    return describe_range("number", allowed);
  else if constexpr (std::is_same_v<T, std::string>)
    return describe_text(allowed);
  else if constexpr (is_list_of_choices<T>)
    return std::string(kListOf) + enum_choices<typename T::value_type>();
  else if constexpr (std::is_same_v<T, std::vector<DataStage>>)
    return "list of {until_tokens: 250B, sources: [path, ...], weights: [number > 0, ...]}";
  else if constexpr (std::is_same_v<T, std::vector<NamedSource>>)
    return "list of {name: text, path: text}";
  else
    return "list of paths or {path: text, weight: number > 0}";
}

}  // namespace tri
