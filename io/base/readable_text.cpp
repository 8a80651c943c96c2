#include "io/base/readable_text.h"

#include <cstdint>

#include <fmt/format.h>

namespace tri {
namespace {

// Returns the bytes of the character at the start of `text`; 0 if it is not valid UTF-8.
size_t character_bytes(std::string_view text) {
  const auto byte = [&](size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned char lead = byte(0);
  const size_t length = lead < 0x80 ? 1 : lead < 0xC2 ? 0 : lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : lead < 0xF5 ? 4 : 0;
  if (length == 0 || length > text.size()) return 0;
  for (size_t i = 1; i < length; ++i)
    if ((byte(i) & 0xC0) != 0x80) return 0;
  // Rejects overlong forms, surrogates, and code points above U+10FFFF.
  if ((lead == 0xE0 && byte(1) < 0xA0) || (lead == 0xED && byte(1) > 0x9F)) return 0;
  if ((lead == 0xF0 && byte(1) < 0x90) || (lead == 0xF4 && byte(1) > 0x8F)) return 0;
  return length;
}

// Returns the code point of a complete character of up to three bytes, or 0xFFFF for longer ones, which are harmless.
uint32_t code_point(std::string_view character) {
  const auto byte = [&](size_t i) { return static_cast<uint32_t>(static_cast<unsigned char>(character[i])); };
  if (character.size() == 1) return byte(0);
  if (character.size() == 2) return (byte(0) & 0x1F) << 6 | (byte(1) & 0x3F);
  if (character.size() == 3) return (byte(0) & 0x0F) << 12 | (byte(1) & 0x3F) << 6 | (byte(2) & 0x3F);
  return 0xFFFF;
}

bool is_harmful(uint32_t point) {
  const bool is_c0 = point < 0x20 && point != '\n' && point != '\t';
  const bool is_del_or_c1 = point >= 0x7F && point < 0xA0;
  const bool is_bidi = (point >= 0x202A && point <= 0x202E) || (point >= 0x2066 && point <= 0x2069);
  return is_c0 || is_del_or_c1 || is_bidi;
}

// Returns the bytes of the sequence "ESC [ digits and semicolons m" at the start of `text`; 0 if there is none.
size_t colour_bytes(std::string_view text) {
  if (!text.starts_with("\x1b[")) return 0;
  const size_t end = text.find_first_not_of("0123456789;", 2);
  return end != text.npos && text[end] == 'm' ? end + 1 : 0;
}

std::string readable(std::string_view text, bool keeps_colours) {
  std::string shown;
  while (!text.empty()) {
    if (const size_t colour = keeps_colours ? colour_bytes(text) : 0; colour > 0) {
      shown += text.substr(0, colour);
      text.remove_prefix(colour);
      continue;
    }
    const size_t length = character_bytes(text);
    const bool is_kept = length > 0 && !is_harmful(code_point(text.substr(0, length)));
    const bool ends_line = text == "\r" || text.starts_with("\r\n");
    if (!ends_line) shown += is_kept ? text.substr(0, length) : "\xEF\xBF\xBD";
    text.remove_prefix(length > 0 ? length : 1);
  }
  return shown;
}

}  // namespace

std::string readable_text(std::string_view text) { return readable(text, false); }
std::string readable_coloured_text(std::string_view text) { return readable(text, true); }

std::string readable_json(std::string_view json) {
  std::string shown;
  while (!json.empty()) {
    const size_t length = character_bytes(json);
    const uint32_t point = length > 0 ? code_point(json.substr(0, length)) : 0xFFFD;
    if (length == 0 || is_harmful(point))
      shown += fmt::format("\\u{:04x}", point);
    else
      shown += json.substr(0, length);
    json.remove_prefix(length > 0 ? length : 1);
  }
  return shown;
}

}  // namespace tri
