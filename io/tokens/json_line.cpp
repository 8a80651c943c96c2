#include "io/tokens/json_line.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <optional>
#include <string>

namespace tri {
namespace {

using Json = nlohmann::json;

// Returns the code unit of "\uXXXX" at `at`; none if there is no such escape.
std::optional<unsigned> escaped_unit(std::string_view text, size_t at) {
  if (text.substr(at, 2) != "\\u" || text.size() < at + 6) return std::nullopt;
  unsigned unit = 0;
  for (const char c : text.substr(at + 2, 4)) {
    if (std::isxdigit(static_cast<unsigned char>(c)) == 0) return std::nullopt;
    unit = unit * 16 + static_cast<unsigned>(c <= '9' ? c - '0' : (c | 0x20) - 'a' + 10);
  }
  return unit;
}

bool is_high(unsigned unit) { return unit >= 0xD800 && unit <= 0xDBFF; }
bool is_low(unsigned unit) { return unit >= 0xDC00 && unit <= 0xDFFF; }

// Returns the length of the number (RFC 8259, section 6) at the beginning of `text`; 0: none.
size_t number_length(std::string_view text) {
  size_t at = 0;
  const auto digits = [&] {
    const size_t begin = at;
    while (at < text.size() && text[at] >= '0' && text[at] <= '9') ++at;
    return at > begin;
  };
  if (text.starts_with('-')) ++at;
  if (at < text.size() && text[at] == '0')
    ++at;
  else if (!digits())
    return 0;
  if (at < text.size() && text[at] == '.' && (++at, !digits())) return 0;
  if (at < text.size() && (text[at] | 0x20) == 'e') {
    ++at;
    if (at < text.size() && (text[at] == '+' || text[at] == '-')) ++at;
    if (!digits()) return 0;
  }
  return at;
}

// Replaces Python's extensions by JSON of the same length, so that the offsets of other errors stay valid.
std::string without_python_extensions(std::string_view line) {
  std::string text(line);
  const auto put_zero = [&](size_t at, size_t length) {
    std::fill_n(text.begin() + static_cast<std::ptrdiff_t>(at), length, ' ');
    text[at] = '0';
  };
  bool in_string = false;
  for (size_t at = 0; at < text.size();) {
    if (text[at] == '"') {
      in_string = !in_string;
      ++at;
    } else if (!in_string) {
      size_t length = number_length(std::string_view(text).substr(at));
      for (const std::string_view name : {"NaN", "Infinity", "-Infinity"})
        if (std::string_view(text).substr(at).starts_with(name)) length = name.size();
      if (length > 0) put_zero(at, length);
      at += std::max<size_t>(length, 1);
    } else if (text[at] != '\\') {
      ++at;
    } else if (const auto unit = escaped_unit(text, at)) {
      const bool pair = is_high(*unit) && is_low(escaped_unit(text, at + 6).value_or(0));
      if (!pair && (is_high(*unit) || is_low(*unit))) text.replace(at, 6, "\\ufffd");
      at += pair ? 12 : 6;
    } else {
      at += 2;
    }
  }
  return text;
}

// Returns the parser's reason without its quotation of the last input, which may be a whole document.
std::string reason_of(std::string why) {
  if (const size_t dash = why.find(" - "); dash != std::string::npos) why = why.substr(dash + 3);
  if (const size_t quoted = why.find("; last read: "); quoted != std::string::npos) {
    const size_t expected = why.rfind("; expected ");
    const std::string rest = expected == std::string::npos || expected < quoted ? "" : why.substr(expected);
    why = why.substr(0, quoted) + rest;
  }
  if (why.find("unexpected end of input") != std::string::npos) why += fmt::format("; {}", kJsonLines);
  return why;
}

}  // namespace

Result<Json> parse_json_line(std::string_view line) {
  Json value = try_parse_json<Json>(line);
  if (!value.is_discarded()) return value;
  try {
    return parse_json<Json>(without_python_extensions(line));
  } catch (const Json::parse_error& problem) {
    return file_error("not valid JSON at byte {}: {}", problem.byte, reason_of(problem.what()));
  } catch (const Json::exception& problem) {
    return file_error("not valid JSON: {}", problem.what());
  }
}

const nlohmann::json* find_json_field(const nlohmann::json& object, std::string_view path) {
  if (!object.is_object()) return nullptr;
  if (const auto whole = object.find(path); whole != object.end()) return &*whole;
  for (size_t dot = path.find('.'); dot != std::string_view::npos; dot = path.find('.', dot + 1))
    if (const auto inner = object.find(path.substr(0, dot)); inner != object.end())
      if (const nlohmann::json* found = find_json_field(*inner, path.substr(dot + 1))) return found;
  return nullptr;
}

}  // namespace tri
