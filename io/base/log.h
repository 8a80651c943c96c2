// Log lines for people. World rank 0 logs for the job; warnings from any rank carry its place, "[pp1 dp0 tp3]", and
// errors its rank and host too, "[rank 3 on node02, pp1 dp0 tp3]". Before log_open() lines go to stderr only, in
// colours if that is a terminal and NO_COLOR is not set. All texts pass through readable_text. Safe for concurrent use.
#pragma once

#include <fmt/format.h>

#include <string>

#include "io/base/log_level.h"

namespace tri {

// Lines above this level only go to log_keep_lines(). The default is kInfo.
void log_set_level(LogLevel level);

// From now on stderr gets only warnings and errors, and no progress; files do not change.
void log_quiet();
bool log_is_quiet();

// Sets the identity of this process: world rank 0 logs for the job. `place`: on the mesh, "pp1 dp0 tp3"; "": unknown
// yet.
void log_identify(int world_rank, const std::string& place);

// From now on lines also go to the file at `path` (appended; created if missing). On world rank 0 all of them do, after
// `head`, which goes only to the file; throws Fatal if the file cannot be opened. On other ranks only errors do; the
// file is opened at the first one. If storage hangs, it delays an error by a few seconds at most, since the error may
// precede the end of the job.
void log_open(const std::string& path, const std::string& head);

// From now on every line of this process goes to a file of this rank, including lines that another rank prints. Creates
// the folder. Logs a warning if the file cannot be opened.
void log_open_rank(const std::string& path);

// From now on calls `keep` with every line before it is printed, also on ranks that do not print it; null: no call.
void log_keep_lines(void (*keep)(const std::string& line));

void log_line_debug(const std::string& text);
void log_line_info(const std::string& text);
void log_line_warn(const std::string& text);
void log_line_alike(const std::string& text);
void log_line_error(const std::string& text);

// Logs the job's final error: `text` unchanged, without the place of this rank. Other ranks need not call it.
void log_last_words(const std::string& text);

template <class... Args>
void log_debug(fmt::format_string<Args...> format, Args&&... args) {  // printed by world rank 0
  log_line_debug(fmt::format(format, std::forward<Args>(args)...));
}
template <class... Args>
void log_info(fmt::format_string<Args...> format, Args&&... args) {  // printed by world rank 0
  log_line_info(fmt::format(format, std::forward<Args>(args)...));
}
template <class... Args>
void log_warn(fmt::format_string<Args...> format, Args&&... args) {  // printed by any rank
  log_line_warn(fmt::format(format, std::forward<Args>(args)...));
}
// A warning that every rank has, with the same message: printed by world rank 0.
template <class... Args>
void log_warn_alike(fmt::format_string<Args...> format, Args&&... args) {
  log_line_alike(fmt::format(format, std::forward<Args>(args)...));
}
template <class... Args>
void log_error(fmt::format_string<Args...> format, Args&&... args) {  // printed by any rank
  log_line_error(fmt::format(format, std::forward<Args>(args)...));
}

}  // namespace tri
