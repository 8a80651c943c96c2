// The letters that stand for bytes in vocabularies of byte-level BPE, since GPT-2: printable Latin-1 stands for itself,
// the rest follows from U+0100 on, in order.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace tri {

const std::array<uint32_t, 256>& byte_letters();  // code points
std::string letters_of(std::string_view bytes);   // UTF-8
// The bytes for which a token's letters stand; none when one of them is no such letter.
std::optional<std::string> bytes_of_letters(std::string_view letters);

}  // namespace tri
