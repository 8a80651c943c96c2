// Log lines for people. World rank 0 speaks for the job; warnings from any rank carry its place, "[pp1 dp0 tp3]",
// errors its rank and host too, "[rank 3 on node02, pp1 dp0 tp3]". Thread-safe. Before log_open the lines go to stderr
// alone, in colours where that is a terminal and NO_COLOR is not set. Texts pass through readable_text.
#pragma once

#include <fmt/format.h>

#include <string>

#include "io/base/log_level.h"

namespace tri {

// Lines above it are for nobody but log_keep_lines. At first kInfo.
void log_set_level(LogLevel level);

// From now on stderr has warnings and errors alone, and no progress; files are as before.
void log_quiet();
bool log_is_quiet();

// Who this process is in the job: world rank 0 speaks. `place`: on the mesh, "pp1 dp0 tp3"; "": not known yet.
void log_identify(int world_rank, const std::string& place);

// From now on lines go to the file at `path` as well (appended; created when missing). On the rank that speaks: all of
// them, after `head`, which goes to the file alone; Fatal when it can't be opened. On the others: errors, for which
// the file is opened when there is one. Storage that hangs holds an error back for a few seconds at most: it may be
// what the rank says before it ends the job.
void log_open(const std::string& path, const std::string& head);

// From now on a file of this rank alone has every line of this process, also those that another rank prints. Its folder
// is made. A warning where it can't be opened.
void log_open_rank(const std::string& path);

// Every line of this process, also those that another rank prints, is shown to `keep` first; null: to nobody.
void log_keep_lines(void (*keep)(const std::string& line));

void log_line_debug(const std::string& text);
void log_line_info(const std::string& text);
void log_line_warn(const std::string& text);
void log_line_alike(const std::string& text);
void log_line_error(const std::string& text);

// What a job comes to its end with, said once for all ranks: `text` as it stands.
void log_last_words(const std::string& text);

template <class... Args>
void log_debug(fmt::format_string<Args...> format, Args&&... args) {  // printed by the rank that speaks
  log_line_debug(fmt::format(format, std::forward<Args>(args)...));
}
template <class... Args>
void log_info(fmt::format_string<Args...> format, Args&&... args) {  // printed by the rank that speaks
  log_line_info(fmt::format(format, std::forward<Args>(args)...));
}
template <class... Args>
void log_warn(fmt::format_string<Args...> format, Args&&... args) {  // printed by any rank
  log_line_warn(fmt::format(format, std::forward<Args>(args)...));
}
// A warning that each rank has cause to give, in the same words: printed by the rank that speaks.
template <class... Args>
void log_warn_alike(fmt::format_string<Args...> format, Args&&... args) {
  log_line_alike(fmt::format(format, std::forward<Args>(args)...));
}
template <class... Args>
void log_error(fmt::format_string<Args...> format, Args&&... args) {  // printed by any rank
  log_line_error(fmt::format(format, std::forward<Args>(args)...));
}

}  // namespace tri
