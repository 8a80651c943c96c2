#include "io/base/log.h"

#include <spdlog/sinks/basic_file_sink.h>
#include <spdlog/sinks/stdout_color_sinks.h>
#include <spdlog/spdlog.h>

#include <atomic>
#include <chrono>
#include <future>
#include <mutex>
#include <system_error>
#include <thread>

#include "io/base/error.h"
#include "io/base/host.h"

namespace tri {
namespace {

constexpr std::chrono::seconds kFilePatience{2};  // less than ranks wait for each other before one ends the job

// Set rarely, read by every line.
struct State {
  std::mutex mutex;
  bool in_job = false;
  int world_rank = 0;
  std::string place;
  std::string path;                       // of the file; "": there is none
  std::shared_ptr<spdlog::logger> lines;  // into it, on the rank that speaks
};

State& state() {
  static State instance;
  return instance;
}

std::atomic<void (*)(const std::string&)> g_keep{nullptr};

void keep_line(const std::string& line) {
  if (const auto keep = g_keep.load()) keep(line);
}

spdlog::logger& console() {
  static const std::shared_ptr<spdlog::logger> instance = [] {
    auto made = std::make_shared<spdlog::logger>("trireme", std::make_shared<spdlog::sinks::stderr_color_sink_mt>());
    made->set_pattern("%^%v%$");
    made->flush_on(spdlog::level::info);
    return made;
  }();
  return *instance;
}

std::shared_ptr<spdlog::logger> open_file(const std::string& path) {
  auto made = std::make_shared<spdlog::logger>("file", std::make_shared<spdlog::sinks::basic_file_sink_mt>(path));
  made->set_pattern("%Y-%m-%d %H:%M:%S.%e %v");
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

// A line of the file that must not be waited for. So it is written by a thread of its own, which has opened the file
// itself: what hangs may hold the locks of the logger that other lines go through.
void append_to_file(const std::string& text) {
  std::string path;
  {
    const std::lock_guard lock(state().mutex);
    path = state().path;
  }
  if (path.empty()) return;
  try {
    std::packaged_task<void()> task([path, text] { open_file(path)->info(text); });
    const std::future<void> written = task.get_future();
    std::thread(std::move(task)).detach();
    written.wait_for(kFilePatience);
  } catch (const std::system_error&) {  // no thread can be had: the console has the line
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

void log_open(const std::string& path, const std::string& head) {
  std::shared_ptr<spdlog::logger> lines;
  if (speaks()) {
    try {
      lines = open_file(path);
      lines->info(head);
    } catch (const spdlog::spdlog_ex& problem) {
      throw Fatal(ExitCode::kFile, fmt::format("log file {}: {}", path, problem.what()));
    }
  }
  const std::lock_guard lock(state().mutex);
  state().path = path;
  state().lines = std::move(lines);
}

void log_keep_lines(void (*keep)(const std::string& line)) { g_keep = keep; }

void log_line_info(const std::string& text) {
  keep_line(text);
  if (!speaks()) return;
  console().info(text);
  if (const auto lines = file_lines()) lines->info(text);
}

void log_line_warn(const std::string& text) {
  const std::string line = warning_of(text);
  keep_line(line);
  console().warn(line);
  if (const auto lines = file_lines()) lines->warn(line);
}

void log_line_error(const std::string& text) {
  const std::string line = error_of(text);
  keep_line(line);
  console().error(line);
  append_to_file(line);
}

void log_last_words(const std::string& text) {
  console().info(text);
  append_to_file(text);
}

}  // namespace tri
