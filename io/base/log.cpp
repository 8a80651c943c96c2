#include "io/base/log.h"

#include <spdlog/pattern_formatter.h>
#include <spdlog/sinks/base_sink.h>
#include <spdlog/sinks/stdout_color_sinks.h>
#include <spdlog/spdlog.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <mutex>

#include "io/base/console.h"
#include "io/base/error.h"
#include "io/base/host.h"
#include "io/base/line_file.h"
#include "io/base/readable_text.h"
#include "io/base/within.h"

namespace tri {
namespace {

constexpr std::chrono::seconds kErrorTimeout{2};  // less than ranks wait for each other before one ends the job
constexpr std::chrono::seconds kExitTimeout{30};  // of a process that has done its work otherwise
constexpr const char* kFilePattern = "%Y-%m-%d %H:%M:%S.%e %v";

// Set rarely, read by every line.
struct State {
  std::mutex mutex;
  bool in_job = false;
  int world_rank = 0;
  std::string place;
  std::string path;                       // of the file; "": there is none
  std::shared_ptr<spdlog::logger> lines;  // into it, on the rank that speaks
  std::shared_ptr<LineFile> file;         // ... behind them
  std::shared_ptr<spdlog::logger> own;    // lines into the file of this rank; null: there is none
  LogLevel level = LogLevel::kInfo;
  bool quiet = false;
};

State& state() {
  static State instance;
  return instance;
}

std::atomic<void (*)(const std::string&)> g_keep{nullptr};

void keep_line(const std::string& line) {
  if (const auto keep = g_keep.load()) keep(line);
}

std::shared_ptr<spdlog::logger> make_console(spdlog::color_mode colours, const char* pattern) {
  auto made =
      std::make_shared<spdlog::logger>("trireme", std::make_shared<spdlog::sinks::stderr_color_sink_mt>(colours));
  made->set_pattern(pattern);
  made->flush_on(spdlog::level::info);
  return made;
}

// stderr: lines that are as they are, and warnings and errors, which a terminal shows in colours.
spdlog::logger& console() {
  static const std::shared_ptr<spdlog::logger> instance = make_console(spdlog::color_mode::never, "%v");
  return *instance;
}

spdlog::logger& trouble_console() {
  static const std::shared_ptr<spdlog::logger> instance = [] {
    const char* const plain = std::getenv("NO_COLOR");
    const bool may_colour = plain == nullptr || *plain == '\0';
    return make_console(may_colour ? spdlog::color_mode::automatic : spdlog::color_mode::never, "%^%v%$");
  }();
  return *instance;
}

// The rank that speaks does so in the middle of its steps, which must not wait for storage.
class LineSink final : public spdlog::sinks::base_sink<std::mutex> {
 public:
  explicit LineSink(std::shared_ptr<LineFile> file) : file_(std::move(file)) {}

 private:
  void sink_it_(const spdlog::details::log_msg& message) override {
    spdlog::memory_buf_t text;
    formatter_->format(message, text);
    file_->append(std::string(text.data(), text.size()));
  }
  void flush_() override {}

  const std::shared_ptr<LineFile> file_;
};

std::shared_ptr<spdlog::logger> file_logger(const spdlog::sink_ptr& sink) {
  auto made = std::make_shared<spdlog::logger>("file", sink);
  made->set_pattern(kFilePattern);
  made->flush_on(spdlog::level::info);
  return made;
}

bool speaks() {
  const std::lock_guard lock(state().mutex);
  return state().world_rank == 0;
}

std::shared_ptr<spdlog::logger> file_lines() {
  const std::lock_guard lock(state().mutex);
  return state().lines;
}

bool is_wanted(LogLevel level) {
  const std::lock_guard lock(state().mutex);
  return level <= state().level;
}

void tell_own_file(const std::string& line) {
  std::shared_ptr<spdlog::logger> own;
  {
    const std::lock_guard lock(state().mutex);
    own = state().own;
  }
  if (own) own->info(line);
}

// Trouble with the log itself can only go to stderr.
Result<std::unique_ptr<LineFile>> open_lines(const std::string& path) {
  const auto report = [](const std::string& message) { print_err("{}\n", message); };
  return LineFile::open(path, report, kExitTimeout);
}

std::string with_time(const std::string& text) {
  spdlog::memory_buf_t line;
  spdlog::pattern_formatter(kFilePattern, spdlog::pattern_time_type::local, "")
      .format(spdlog::details::log_msg("", spdlog::level::info, text), line);
  return std::string(line.data(), line.size());
}

// A line that only the rank that speaks prints, on stderr unless it is quiet, and into the file.
void tell(const std::string& text) {
  if (!speaks()) return;
  if (!log_is_quiet()) console().info(text);
  if (const auto lines = file_lines()) lines->info(text);
}

// A line of the file that is waited for, though not for long: it may be the last. A rank that does not speak has no
// file open yet: the thread that opens it may hang there.
void append_to_file(const std::string& text) {
  std::string path;
  std::shared_ptr<spdlog::logger> lines;
  std::shared_ptr<LineFile> file;
  {
    const std::lock_guard lock(state().mutex);
    path = state().path, lines = state().lines, file = state().file;
  }
  if (file) {
    lines->info(text);
    file->flush(kErrorTimeout);
  } else if (!path.empty()) {
    within(
        path, kErrorTimeout, [path, line = with_time(text)] { return append_line(path, line).ok(); }, false);
  }
}

std::string warning_of(const std::string& text) {
  const std::lock_guard lock(state().mutex);
  const State& s = state();
  if (!s.in_job) return "warning: " + text;
  return fmt::format("[{}] warning: {}", s.place.empty() ? fmt::format("rank {}", s.world_rank) : s.place, text);
}

std::string error_of(const std::string& text) {
  const std::lock_guard lock(state().mutex);
  const State& s = state();
  if (!s.in_job) return "error: " + text;
  return fmt::format("[rank {} on {}{}{}] error: {}", s.world_rank, host_name(), s.place.empty() ? "" : ", ", s.place,
                     text);
}

}  // namespace

void log_identify(int world_rank, const std::string& place) {
  const std::lock_guard lock(state().mutex);
  state().in_job = true;
  state().world_rank = world_rank;
  state().place = place;
}

void log_set_level(LogLevel level) {
  const std::lock_guard lock(state().mutex);
  state().level = level;
}

void log_quiet() {
  const std::lock_guard lock(state().mutex);
  state().quiet = true;
}

bool log_is_quiet() {
  const std::lock_guard lock(state().mutex);
  return state().quiet;
}

void log_open(const std::string& path, const std::string& head) {
  std::shared_ptr<spdlog::logger> lines;
  std::shared_ptr<LineFile> file;
  if (speaks()) {
    auto opened = open_lines(path);
    if (!opened) throw Fatal(ExitCode::kFile, "log file " + opened.error().message);
    file = std::move(opened).value();
    lines = file_logger(std::make_shared<LineSink>(file));
    lines->info(readable_text(head));
  }
  const std::lock_guard lock(state().mutex);
  state().path = path;
  state().lines = std::move(lines);
  state().file = std::move(file);
}

void log_open_rank(const std::string& path) {
  std::error_code ignored;  // the file says it
  std::filesystem::create_directories(std::filesystem::path(path).parent_path(), ignored);
  auto opened = open_lines(path);
  if (!opened) return log_line_warn("metrics.log_ranks: " + opened.error().message);
  auto lines = file_logger(std::make_shared<LineSink>(std::move(opened).value()));
  const std::lock_guard lock(state().mutex);
  state().own = std::move(lines);
}

void log_keep_lines(void (*keep)(const std::string& line)) { g_keep = keep; }

// Lines hold names and texts from files and other machines: all of them become readable here.
void log_line_debug(const std::string& raw) {
  if (!is_wanted(LogLevel::kDebug)) return;
  const std::string text = readable_text(raw);
  keep_line(text);
  tell_own_file(text);
  tell(text);
}

void log_line_info(const std::string& raw) {
  const std::string text = readable_text(raw);
  keep_line(text);
  if (!is_wanted(LogLevel::kInfo)) return;
  tell_own_file(text);
  tell(text);
}

void log_line_warn(const std::string& text) {
  const std::string line = warning_of(readable_text(text));
  keep_line(line);
  if (!is_wanted(LogLevel::kWarn)) return;
  tell_own_file(line);
  trouble_console().warn(line);
  if (const auto lines = file_lines()) lines->warn(line);
}

void log_line_alike(const std::string& text) {
  if (speaks()) return log_line_warn(text);
  const std::string line = warning_of(readable_text(text));
  keep_line(line);
  if (is_wanted(LogLevel::kWarn)) tell_own_file(line);
}

void log_line_error(const std::string& text) {
  const std::string line = error_of(readable_text(text));
  keep_line(line);
  tell_own_file(line);
  trouble_console().error(line);
  append_to_file(line);
}

void log_last_words(const std::string& raw) {
  const std::string text = readable_text(raw);
  trouble_console().error(text);
  append_to_file(text);
}

}  // namespace tri
