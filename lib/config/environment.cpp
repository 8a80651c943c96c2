#include "lib/config/environment.h"

#include <cctype>
#include <cstdlib>

namespace tri {
namespace {

bool begins_name(char c) { return std::isalpha(static_cast<unsigned char>(c)) || c == '_'; }
bool in_name(char c) { return std::isalnum(static_cast<unsigned char>(c)) || c == '_'; }

// Returns the longest prefix of `text` that is a variable name.
std::string_view name_in(std::string_view text) {
  size_t length = 0;
  while (length < text.size() && (length == 0 ? begins_name(text[0]) : in_name(text[length]))) ++length;
  return text.substr(0, length);
}

Result<std::string> value_of(std::string_view name) {
  const std::string text(name);
  if (const char* value = std::getenv(text.c_str())) return std::string(value);
  return usage_error(
      "the environment variable {} is not set; export it, or write ${{{}:-DEFAULT}} ($$ stands for a plain $)", text,
      text);
}

// Returns the value of "NAME" or "NAME:-DEFAULT" in braces.
Result<std::string> value_in_braces(std::string_view inside) {
  const std::string_view name = name_in(inside), rest = inside.substr(name.size());
  const bool has_default = rest.starts_with(":-");
  if (name.empty() || (!rest.empty() && !has_default))
    return usage_error("${{{}}} is not a variable; write ${{NAME}} or ${{NAME:-DEFAULT}} ($$ stands for a plain $)",
                       inside);
  if (!has_default) return value_of(name);
  const char* value = std::getenv(std::string(name).c_str());
  return std::string(value != nullptr && *value != '\0' ? value : rest.substr(2));
}

}  // namespace

Result<std::string> expand_environment(std::string_view text) {
  std::string expanded;
  while (!text.empty()) {
    const size_t dollar = text.find('$');
    expanded += text.substr(0, dollar);
    if (dollar == text.npos) break;
    text.remove_prefix(dollar + 1);
    Result<std::string> value = std::string("$");
    if (text.starts_with('$')) {
      text.remove_prefix(1);
    } else if (text.starts_with('{')) {
      const size_t close = text.find('}');
      if (close == text.npos) return usage_error("${} has no closing brace; $$ stands for a plain $", text);
      value = value_in_braces(text.substr(1, close - 1));
      text.remove_prefix(close + 1);
    } else if (const std::string_view name = name_in(text); !name.empty()) {
      value = value_of(name);
      text.remove_prefix(name.size());
    }
    if (!value) return value;
    expanded += value.value();
  }
  // Also expands "~/" that a variable contained, so that a second expansion changes nothing.
  if (expanded.starts_with("~/")) {
    const auto home = value_of("HOME");
    if (!home) return home;
    expanded.replace(0, 1, home.value());
  }
  return expanded;
}

std::string escape_environment(std::string_view text) {
  std::string escaped;
  for (const char c : text) escaped += c == '$' ? std::string("$$") : std::string(1, c);
  return escaped;
}

}  // namespace tri
