#include "lib/observe/metrics.h"

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "io/base/log.h"

namespace tri {
namespace {

// JSON has no NaN or infinity: null stands for a number that is not finite.
std::string number(double value) { return std::isfinite(value) ? fmt::format("{:.9g}", value) : "null"; }
std::string number(const std::optional<double>& value) { return value ? number(*value) : "null"; }

// Behind the other fields of `object`.
std::string with_time(const std::string& object) {
  const std::chrono::duration<double> now = std::chrono::system_clock::now().time_since_epoch();
  return fmt::format("{},\"time\":{:.3f}}}", object.substr(0, object.size() - 1), now.count());
}

int64_t number_of(const std::string& line, const std::string& key) {
  const size_t at = line.find(key);
  return at == line.npos ? 0 : std::strtoll(line.c_str() + at + key.size(), nullptr, 10);
}

}  // namespace

MetricsFile::MetricsFile(const std::string& path) : path_(path), file_(std::fopen(path.c_str(), "a")) {
  if (file_ == nullptr) throw Fatal(ExitCode::kFile, fmt::format("{}: {}", path, std::strerror(errno)));
}

MetricsFile::~MetricsFile() { std::fclose(file_); }

void MetricsFile::write(const std::string& object) {
  const std::string line = with_time(object);
  if (std::fprintf(file_, "%s\n", line.c_str()) < 0 || std::fflush(file_) != 0)
    log_warn("{}: {}; training goes on", path_, std::strerror(errno));
}

void MetricsFile::step(const StepMetrics& metrics) { write(json_line(metrics)); }

void MetricsFile::evaluation(int64_t step, double loss) {
  write(fmt::format(R"({{"step":{},"validation_loss":{}}})", step, number(loss)));
}

void MetricsFile::checkpoint(int64_t step, int64_t bytes, double stall_seconds, double seconds) {
  write(fmt::format(R"({{"step":{},"checkpoint_bytes":{},"checkpoint_stall_ms":{},"checkpoint_ms":{}}})", step, bytes,
                    number(1e3 * stall_seconds), number(1e3 * seconds)));
}

Result<void> begin_metrics(const std::string& path, int64_t completed) {
  std::error_code problem;
  if (!std::filesystem::exists(path, problem)) return {};
  std::ifstream earlier(path);
  if (!earlier) return system_error(errno, "{}", path);
  int64_t restarts = 0, last_step = 0, whole_bytes = 0;
  std::string line;
  while (std::getline(earlier, line) && !earlier.eof()) {
    whole_bytes += static_cast<int64_t>(line.size()) + 1;
    if (line.starts_with("{\"restart\":")) {
      ++restarts;
      last_step = number_of(line, "\"step\":");
    } else if (line.find("\"step_ms\":") != line.npos) {  // other lines speak of steps that are done already
      last_step = number_of(line, "\"step\":");
    }
  }
  if (earlier.bad()) return system_error(errno, "{}", path);
  if (!line.empty()) std::filesystem::resize_file(path, static_cast<uintmax_t>(whole_bytes), problem);
  if (problem) return file_error("{}: {}", path, problem.message());
  if (whole_bytes == 0) return {};
  std::ofstream file(path, std::ios::app);
  file << with_time(fmt::format(R"({{"restart":{},"step":{},"lost_steps":{}}})", restarts + 1, completed,
                                std::max<int64_t>(0, last_step - completed)))
       << '\n';
  return file.flush() ? Result<void>{} : system_error(errno, "{}", path);
}

std::string json_line(const StepMetrics& m) {
  std::string spent;
  const auto seconds = m.times.values();
  for (size_t i = 0; i < seconds.size(); ++i)
    spent += fmt::format(R"(,"{}_ms":{:.4g})", StepTimes::names()[i], 1e3 * seconds[i]);
  return fmt::format(
      R"({{"step":{},"samples":{},"tokens":{},"loss":{},"grad_norm":{},"lr":{},"step_ms":{},"tokens_per_s":{},)"
      R"("tflops_per_rank":{},"mfu":{},"mfu_causal":{}{},"data_bytes":{}}})",
      m.step, m.samples, m.tokens, number(m.loss), number(m.grad_norm), number(m.learning_rate), number(m.step_ms),
      number(m.tokens_per_s), number(m.tflops_per_rank), number(m.mfu), number(m.mfu_causal), spent, m.data_bytes);
}

std::string console_line(const StepMetrics& m, int64_t last_step, int64_t memory_bytes) {
  const int width = static_cast<int>(std::to_string(last_step).size());
  const std::string waits = exposed_text(m.times);
  return fmt::format("step {:>{}}/{}  loss {:.4f}  grad {:.3f}  lr {:.2e}  {:.0f} ms  {} tok/s  {}{}{}  ETA {}", m.step,
                     width, last_step, m.loss, m.grad_norm, m.learning_rate, m.step_ms, format_count(m.tokens_per_s),
                     m.mfu ? fmt::format("MFU {:.1f} %  ", 100 * *m.mfu) : "", waits.empty() ? "" : waits + "  ",
                     format_bytes(memory_bytes),
                     format_duration(static_cast<double>(last_step - m.step) * m.step_ms / 1000));
}

}  // namespace tri
