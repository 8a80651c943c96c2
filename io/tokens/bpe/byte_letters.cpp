#include "io/tokens/bpe/byte_letters.h"

#include "io/tokens/utf8.h"

namespace tri {
namespace {

constexpr uint32_t kLetters = 0x144;  // all letters are below it

std::array<int16_t, kLetters> bytes_by_letter() {
  std::array<int16_t, kLetters> bytes;
  bytes.fill(-1);
  for (size_t byte = 0; byte < 256; ++byte) bytes[byte_letters()[byte]] = static_cast<int16_t>(byte);
  return bytes;
}

}  // namespace

const std::array<uint32_t, 256>& byte_letters() {
  static const std::array<uint32_t, 256> letters = [] {
    std::array<uint32_t, 256> made{};
    uint32_t next = 256;
    for (uint32_t byte = 0; byte < 256; ++byte) {
      const bool printable = (byte >= 33 && byte <= 126) || (byte >= 161 && byte != 173);
      made[byte] = printable ? byte : next++;
    }
    return made;
  }();
  return letters;
}

std::string letters_of(std::string_view bytes) {
  std::string letters;
  for (const char c : bytes) {
    const uint32_t letter = byte_letters()[static_cast<unsigned char>(c)];
    if (letter < 128)
      letters += static_cast<char>(letter);
    else
      letters += {static_cast<char>(0xC0 | letter >> 6), static_cast<char>(0x80 | (letter & 63))};
  }
  return letters;
}

std::optional<std::string> bytes_of_letters(std::string_view letters) {
  static const std::array<int16_t, kLetters> bytes_by = bytes_by_letter();
  std::string bytes;
  while (!letters.empty()) {
    const size_t length = utf8_sequence(letters);
    if (length == 0) return {};
    const uint32_t letter = utf8_code_point(letters, length);
    if (letter >= kLetters || bytes_by[letter] < 0) return {};
    bytes += static_cast<char>(bytes_by[letter]);
    letters.remove_prefix(length);
  }
  return bytes;
}

}  // namespace tri
