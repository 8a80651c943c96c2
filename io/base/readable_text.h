// Text from files, models, other machines and command lines, made safe for a terminal.
#pragma once

#include <string>
#include <string_view>

namespace tri {

// Returns `text` with U+FFFD in place of each byte that is not UTF-8, each control character that a terminal acts on
// (C0 and DEL except newline and tab; C1), and each character that overrides the direction of text (U+202A to U+202E,
// U+2066 to U+2069). A carriage return before a newline, or at the end, where a newline may follow, is dropped.
// The result for the beginning of a text is the beginning of the result for the whole, if it ends with a whole
// character.
std::string readable_text(std::string_view text);

// The same, except that sequences that set colours stay: ESC [ digits and semicolons m. For text that this program has
// coloured itself, on a terminal.
std::string readable_coloured_text(std::string_view text);

// Returns the JSON text `json` with such characters as \uXXXX, which means the same. Its own writers have escaped C0.
std::string readable_json(std::string_view json);

}  // namespace tri
