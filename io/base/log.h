// Log lines for people. World rank 0 speaks for the job; warnings from any rank carry its place, "[pp1 dp0 tp3]".
// Thread-safe. Before log_open the lines go to stderr alone.
#pragma once

#include <fmt/format.h>

#include <string>

namespace tri {

// Who this process is in the job. `speaks` is true on world rank 0 only; `place` prefixes warnings of the others.
void log_identify(bool speaks, const std::string& place);

// Copies every line also to `path` (appended; created when missing). Fatal when it can't be opened.
void log_open(const std::string& path);

void log_line_info(const std::string& text);
void log_line_warn(const std::string& text);
void log_line_error(const std::string& text);

template <class... Args>
void log_info(fmt::format_string<Args...> format, Args&&... args) {  // printed by the rank that speaks
  log_line_info(fmt::format(format, std::forward<Args>(args)...));
}
template <class... Args>
void log_warn(fmt::format_string<Args...> format, Args&&... args) {  // printed by any rank
  log_line_warn(fmt::format(format, std::forward<Args>(args)...));
}
template <class... Args>
void log_error(fmt::format_string<Args...> format, Args&&... args) {  // printed by any rank
  log_line_error(fmt::format(format, std::forward<Args>(args)...));
}

}  // namespace tri
