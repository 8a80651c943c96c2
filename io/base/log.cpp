#include "io/base/log.h"

#include <fmt/chrono.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <filesystem>

#include "io/base/console.h"
#include "io/base/error.h"
#include "io/base/host.h"
#include "io/base/line_file.h"
#include "io/base/mutex.h"
#include "io/base/readable_text.h"
#include "io/base/stderr.h"
#include "io/base/within.h"

namespace tri {
namespace {

constexpr std::chrono::seconds kErrorTimeout{2};  // less than ranks wait for each other before one ends the job
constexpr std::chrono::seconds kExitTimeout{30};  // for a process that has otherwise finished its work

// Written rarely, read for every line.
struct State {
  Mutex mutex;
  bool in_job TRI_GUARDED_BY(mutex) = false;
  int world_rank TRI_GUARDED_BY(mutex) = 0;
  std::string place TRI_GUARDED_BY(mutex);
  std::string path TRI_GUARDED_BY(mutex);                // of the file; "": none
  std::shared_ptr<LineFile> file TRI_GUARDED_BY(mutex);  // open on the rank that logs for the job
  std::shared_ptr<LineFile> own TRI_GUARDED_BY(mutex);   // of this rank only; null: none
  LogLevel level TRI_GUARDED_BY(mutex) = LogLevel::kInfo;
  bool quiet TRI_GUARDED_BY(mutex) = false;
};

State& state() {
  static State instance;
  return instance;
}

std::atomic<void (*)(const std::string&)> g_keep{nullptr};

void keep_line(const std::string& line) {
  if (const auto keep = g_keep.load()) keep(line);
}

void print_line(std::string_view line, std::string_view colour = "") {
  write_stderr(colour.empty() ? fmt::format("{}\n", line) : fmt::format("{}{}\033[m\n", colour, line));
}

// Returns whether stderr is a terminal that shows colours.
bool has_colours() {
  const auto variable = [](const char* name) {
    const char* const value = std::getenv(name);
    return std::string_view(value == nullptr ? "" : value);
  };
  const std::string_view terminal = variable("TERM");
  return variable("NO_COLOR").empty() && !terminal.empty() && terminal != "dumb" && ::isatty(STDERR_FILENO) != 0;
}

void print_warning(std::string_view line) { print_line(line, has_colours() ? "\033[33m\033[1m" : ""); }
// It may be the last line of the process.
void print_error(std::string_view line) {
  print_line(line, has_colours() ? "\033[31m\033[1m" : "");
  flush_stderr(kErrorTimeout);
}

// Returns `line` as it appears in a file, without its newline: after the local date and time.
std::string dated(const std::string& line) {
  const auto now = std::chrono::system_clock::now();
  const auto milliseconds = std::chrono::duration_cast<std::chrono::milliseconds>(now.time_since_epoch()).count();
  return fmt::format("{:%Y-%m-%d %H:%M:%S}.{:03} {}", fmt::localtime(std::chrono::system_clock::to_time_t(now)),
                     milliseconds % 1000, line);
}

bool speaks() {
  const MutexLock lock(state().mutex);
  return state().world_rank == 0;
}

// The logging rank calls this during its steps, which must not wait for storage; LineFile never waits.
void write_to_file(const std::string& line) {
  std::shared_ptr<LineFile> file;
  {
    const MutexLock lock(state().mutex);
    file = state().file;
  }
  if (file) file->append(dated(line) + "\n");
}

bool is_wanted(LogLevel level) {
  const MutexLock lock(state().mutex);
  return level <= state().level;
}

void append_to_own_file(const std::string& line) {
  std::shared_ptr<LineFile> own;
  {
    const MutexLock lock(state().mutex);
    own = state().own;
  }
  if (own) own->append(dated(line) + "\n");
}

// Problems with the log itself can only go to stderr.
Result<std::unique_ptr<LineFile>> open_lines(const std::string& path) {
  const auto report = [](const std::string& message) { print_err("{}\n", message); };
  return LineFile::open(path, report, kExitTimeout);
}

// Logs a line that only the job's logging rank prints: to stderr unless it is quiet, and to the file.
void log_for_job(const std::string& text) {
  if (!speaks()) return;
  if (!log_is_quiet()) print_line(text);
  write_to_file(text);
}

// Appends a line to the file and waits for it, but not for long: it may be the last line. A rank that does not log for
// the job has no open file yet, and the thread that opens it may hang.
void append_to_file(const std::string& text) {
  std::string path;
  std::shared_ptr<LineFile> file;
  {
    const MutexLock lock(state().mutex);
    path = state().path, file = state().file;
  }
  if (file) {
    file->append(dated(text) + "\n");
    file->flush(kErrorTimeout);
  } else if (!path.empty()) {
    within(
        path, kErrorTimeout, [path, line = dated(text)] { return append_line(path, line).ok(); }, false);
  }
}

std::string warning_of(const std::string& text) {
  State& s = state();
  const MutexLock lock(s.mutex);
  if (!s.in_job) return "warning: " + text;
  return fmt::format("[{}] warning: {}", s.place.empty() ? fmt::format("rank {}", s.world_rank) : s.place, text);
}

std::string error_of(const std::string& text) {
  State& s = state();
  const MutexLock lock(s.mutex);
  if (!s.in_job) return "error: " + text;
  return fmt::format("[rank {} on {}{}{}] error: {}", s.world_rank, host_name(), s.place.empty() ? "" : ", ", s.place,
                     text);
}

}  // namespace

void log_identify(int world_rank, const std::string& place) {
  const MutexLock lock(state().mutex);
  state().in_job = true;
  state().world_rank = world_rank;
  state().place = place;
}

void log_set_level(LogLevel level) {
  const MutexLock lock(state().mutex);
  state().level = level;
}

void log_quiet() {
  const MutexLock lock(state().mutex);
  state().quiet = true;
}

bool log_is_quiet() {
  const MutexLock lock(state().mutex);
  return state().quiet;
}

void log_open(const std::string& path, const std::string& head) {
  std::shared_ptr<LineFile> file;
  if (speaks()) {
    auto opened = open_lines(path);
    if (!opened) throw Fatal(ExitCode::kFile, "log file " + opened.error().message);
    file = std::move(opened).value();
    file->append(dated(readable_text(head)) + "\n");
  }
  const MutexLock lock(state().mutex);
  state().path = path;
  state().file = std::move(file);
}

void log_open_rank(const std::string& path) {
  std::error_code ignored;  // opening the file reports the error
  std::filesystem::create_directories(std::filesystem::path(path).parent_path(), ignored);
  auto opened = open_lines(path);
  if (!opened) return log_line_warn("metrics.log_ranks: " + opened.error().message);
  const MutexLock lock(state().mutex);
  state().own = std::move(opened).value();
}

void log_keep_lines(void (*keep)(const std::string& line)) { g_keep = keep; }

// Lines contain names and texts from files and other machines, so all of them are made readable here.
void log_line_debug(const std::string& raw) {
  if (!is_wanted(LogLevel::kDebug)) return;
  const std::string text = readable_text(raw);
  keep_line(text);
  append_to_own_file(text);
  log_for_job(text);
}

void log_line_info(const std::string& raw) {
  const std::string text = readable_text(raw);
  keep_line(text);
  if (!is_wanted(LogLevel::kInfo)) return;
  append_to_own_file(text);
  log_for_job(text);
}

void log_line_warn(const std::string& text) {
  const std::string line = warning_of(readable_text(text));
  keep_line(line);
  if (!is_wanted(LogLevel::kWarn)) return;
  append_to_own_file(line);
  print_warning(line);
  write_to_file(line);
}

void log_line_alike(const std::string& text) {
  if (speaks()) return log_line_warn(text);
  const std::string line = warning_of(readable_text(text));
  keep_line(line);
  if (is_wanted(LogLevel::kWarn)) append_to_own_file(line);
}

void log_line_error(const std::string& text) {
  const std::string line = error_of(readable_text(text));
  keep_line(line);
  append_to_own_file(line);
  print_error(line);
  append_to_file(line);
}

void log_last_words(const std::string& raw) {
  const std::string text = readable_text(raw);
  print_error(text);
  append_to_file(text);
}

}  // namespace tri
