// Makes text from files, models, other machines and command lines safe for a terminal.
#pragma once

#include <string>
#include <string_view>

namespace tri {

// Returns `text` with U+FFFD in place of each byte that is not UTF-8, each control character that a terminal interprets
// (C0 and DEL except newline and tab; C1), and each character that overrides the direction of text (U+202A to U+202E,
// U+2066 to U+2069). Drops a carriage return before a newline, or at the end, where a newline may follow. A prefix of
// `text` that ends with a whole character gives a prefix of the result.
std::string readable_text(std::string_view text);

// The same, but keeps sequences that set colours: ESC [ digits and semicolons m. For text that this program has
// coloured, on a terminal.
std::string readable_coloured_text(std::string_view text);

// Returns the JSON text `json` with such characters as \uXXXX, which means the same. Its writers have escaped C0.
std::string readable_json(std::string_view json);

}  // namespace tri
