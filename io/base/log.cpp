#include "io/base/log.h"

#include <spdlog/sinks/basic_file_sink.h>
#include <spdlog/sinks/stdout_color_sinks.h>
#include <spdlog/spdlog.h>

#include <atomic>
#include <mutex>

#include "io/base/error.h"

namespace tri {
namespace {

struct Identity {
  std::atomic<bool> speaks{true};
  std::mutex mutex;
  std::string place;  // guarded by mutex
};

Identity& identity() {
  static Identity instance;
  return instance;
}

spdlog::logger& logger() {
  static const std::shared_ptr<spdlog::logger> instance = [] {
    auto made = std::make_shared<spdlog::logger>("trireme", std::make_shared<spdlog::sinks::stderr_color_sink_mt>());
    made->set_pattern("%^%v%$");
    made->flush_on(spdlog::level::info);
    return made;
  }();
  return *instance;
}

std::string placed(const char* kind, const std::string& text) {
  std::lock_guard lock(identity().mutex);
  const std::string& place = identity().place;
  return place.empty() ? fmt::format("{}: {}", kind, text) : fmt::format("[{}] {}: {}", place, kind, text);
}

}  // namespace

void log_identify(bool speaks, const std::string& place) {
  identity().speaks = speaks;
  std::lock_guard lock(identity().mutex);
  identity().place = place;
}

void log_open(const std::string& path) {
  try {
    auto sink = std::make_shared<spdlog::sinks::basic_file_sink_mt>(path);
    sink->set_pattern("%Y-%m-%d %H:%M:%S.%e %v");
    logger().sinks().push_back(std::move(sink));
  } catch (const spdlog::spdlog_ex& problem) {
    throw Fatal(ExitCode::kFile, fmt::format("log file {}: {}", path, problem.what()));
  }
}

void log_line_info(const std::string& text) {
  if (identity().speaks) logger().info(text);
}
void log_line_warn(const std::string& text) { logger().warn(placed("warning", text)); }
void log_line_error(const std::string& text) { logger().error(placed("error", text)); }

}  // namespace tri
