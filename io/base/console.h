// Output of commands. All text passes through readable_text here, and only here, so that names and texts from files,
// other machines and command lines cannot control a terminal. No function throws: finish_output() reports once what
// could not be written to standard output. Safe for concurrent use.
#pragma once

#include <fmt/format.h>

#include <string>
#include <string_view>

#include "io/base/error.h"

namespace tri {

void print_text(std::string_view text);        // to standard output
void print_coloured(std::string_view text);    // ... which keeps this program's colours
void print_json(std::string_view json);        // ... one JSON text, which keeps its meaning; adds a newline
void print_bytes(std::string_view bytes);      // ... unchanged, for files and pipes
void print_error_text(std::string_view text);  // to standard error

template <class... Args>
void print_out(fmt::format_string<Args...> format, Args&&... args) {
  print_text(fmt::format(format, std::forward<Args>(args)...));
}
template <class... Args>
void print_err(fmt::format_string<Args...> format, Args&&... args) {
  print_error_text(fmt::format(format, std::forward<Args>(args)...));
}

// Flushes standard error, then standard output. Fails with kFile if any output could not be written, now or earlier. A
// reader that has closed its end of a pipe is not an error.
Result<void> finish_output();

}  // namespace tri
