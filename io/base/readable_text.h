// Text from models, for people.
#pragma once

#include <string>
#include <string_view>

namespace tri {

// For logs and terminals: bytes that are no UTF-8, and control characters, which a terminal would obey, as U+FFFD;
// newlines and tabs stay. A carriage return before a newline, or at the end, where a newline may follow, is left out.
// What is readable of a text is the beginning of what is readable of any longer one that begins with it, if it ends
// with a whole character.
std::string readable_text(std::string_view text);

}  // namespace tri
