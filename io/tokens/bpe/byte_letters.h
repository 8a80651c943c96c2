// The letters that represent bytes in vocabularies of byte-level BPE, since GPT-2: printable Latin-1 represents itself,
// the other bytes follow from U+0100 on, in order.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace tri {

const std::array<uint32_t, 256>& byte_letters();  // code points
std::string letters_of(std::string_view bytes);   // UTF-8
// Returns the bytes that a token's letters represent; none if one of them is not such a letter.
std::optional<std::string> bytes_of_letters(std::string_view letters);

}  // namespace tri
