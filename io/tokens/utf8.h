// UTF-8, byte by byte (Unicode 15, table 3-7).
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string_view>

namespace tri {

inline constexpr std::string_view kByteOrderMark = "\xef\xbb\xbf";

// Returns the length of the well-formed UTF-8 sequence at the beginning of `text`, which must not be empty; 0 if there
// is none (no overlong forms, no surrogates). NUL is a character.
inline size_t utf8_sequence(std::string_view text) {
  const auto byte = [&](size_t i) { return static_cast<unsigned char>(text[i]); };
  const auto within = [&](size_t i, int low, int high) { return i < text.size() && byte(i) >= low && byte(i) <= high; };
  const int lead = byte(0);
  if (lead < 0x80) return 1;
  if (lead >= 0xC2 && lead <= 0xDF) return within(1, 0x80, 0xBF) ? 2 : 0;
  if (lead >= 0xE0 && lead <= 0xEF) {
    const int low = lead == 0xE0 ? 0xA0 : 0x80, high = lead == 0xED ? 0x9F : 0xBF;  // overlong; surrogates
    return within(1, low, high) && within(2, 0x80, 0xBF) ? 3 : 0;
  }
  if (lead >= 0xF0 && lead <= 0xF4) {
    const int low = lead == 0xF0 ? 0x90 : 0x80, high = lead == 0xF4 ? 0x8F : 0xBF;  // overlong; above U+10FFFF
    return within(1, low, high) && within(2, 0x80, 0xBF) && within(3, 0x80, 0xBF) ? 4 : 0;
  }
  return 0;
}

// Returns the code point of a well-formed sequence of `length` bytes.
inline uint32_t utf8_code_point(std::string_view text, size_t length) {
  const auto byte = [&](size_t i) { return static_cast<uint32_t>(static_cast<unsigned char>(text[i])); };
  if (length == 1) return byte(0);
  uint32_t point = byte(0) & (0xFFu >> (length + 1));
  for (size_t i = 1; i < length; ++i) point = point << 6 | (byte(i) & 0x3F);
  return point;
}

// Returns the number of bytes at the beginning of `text` that are well-formed.
inline size_t utf8_prefix(std::string_view text) {
  size_t at = 0;
  while (at < text.size()) {
    uint64_t word;
    if (at + sizeof word <= text.size()) {
      std::memcpy(&word, text.data() + at, sizeof word);
      if ((word & 0x8080808080808080) == 0) {
        at += sizeof word;
        continue;
      }
    }
    const size_t length = utf8_sequence(text.substr(at, 4));
    if (length == 0) break;
    at += length;
  }
  return at;
}

}  // namespace tri
