#include "io/base/readable_text.h"

namespace tri {
namespace {

// Bytes of the character that `text` begins with; 0: it begins with none that UTF-8 has.
size_t character_bytes(std::string_view text) {
  const auto byte = [&](size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned char lead = byte(0);
  const size_t length = lead < 0x80 ? 1 : lead < 0xC2 ? 0 : lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : lead < 0xF5 ? 4 : 0;
  if (length == 0 || length > text.size()) return 0;
  for (size_t i = 1; i < length; ++i)
    if ((byte(i) & 0xC0) != 0x80) return 0;
  // Longer than needed, surrogates, and what lies behind U+10FFFF.
  if ((lead == 0xE0 && byte(1) < 0xA0) || (lead == 0xED && byte(1) > 0x9F)) return 0;
  if ((lead == 0xF0 && byte(1) < 0x90) || (lead == 0xF4 && byte(1) > 0x8F)) return 0;
  return length;
}

// Of C0 and C1, which a terminal obeys; `character` is whole.
bool is_control(std::string_view character) {
  const auto lead = static_cast<unsigned char>(character[0]);
  if (lead == 0xC2) return static_cast<unsigned char>(character[1]) < 0xA0;
  return (lead < 0x20 && lead != '\n' && lead != '\t') || lead == 0x7F;
}

}  // namespace

std::string readable_text(std::string_view text) {
  std::string shown;
  while (!text.empty()) {
    const size_t length = character_bytes(text);
    const bool kept = length > 0 && !is_control(text.substr(0, length));
    const bool ends_line = text == "\r" || text.starts_with("\r\n");
    if (!ends_line) shown += kept ? text.substr(0, length) : "\xEF\xBF\xBD";
    text.remove_prefix(length > 0 ? length : 1);
  }
  return shown;
}

}  // namespace tri
