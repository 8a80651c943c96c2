// What commands print. All text passes through readable_text here, and only here, so that names and texts from files,
// other machines and command lines cannot control a terminal. Nothing throws: what could not be written to standard
// output is reported once, by finish_output(). Safe for concurrent use.
#pragma once

#include <fmt/format.h>

#include <string>
#include <string_view>

#include "io/base/error.h"

namespace tri {

void print_text(std::string_view text);        // to standard output
void print_coloured(std::string_view text);    // ... where colours that this program has set stay
void print_json(std::string_view json);        // ... one JSON text, which keeps its meaning; a newline follows
void print_bytes(std::string_view bytes);      // ... as they are, for files and pipes
void print_error_text(std::string_view text);  // to standard error

template <class... Args>
void print_out(fmt::format_string<Args...> format, Args&&... args) {
  print_text(fmt::format(format, std::forward<Args>(args)...));
}
template <class... Args>
void print_err(fmt::format_string<Args...> format, Args&&... args) {
  print_error_text(fmt::format(format, std::forward<Args>(args)...));
}

// Writes out what is buffered for standard output. Error (kFile) where any of it could not be written, now or earlier.
// A reader that has closed its end of a pipe is no error.
Result<void> finish_output();

}  // namespace tri
