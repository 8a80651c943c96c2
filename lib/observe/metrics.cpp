#include "lib/observe/metrics.h"

#include <cerrno>
#include <cinttypes>
#include <cmath>
#include <cstring>

#include "io/base/error.h"
#include "io/base/log.h"

namespace tri {
namespace {

// JSON has no NaN or infinity: null stands for a number that is not finite.
std::string number(double value) { return std::isfinite(value) ? fmt::format("{:.9g}", value) : "null"; }
std::string number(const std::optional<double>& value) { return value ? number(*value) : "null"; }

}  // namespace

MetricsFile::MetricsFile(const std::string& path) : path_(path), file_(std::fopen(path.c_str(), "a")) {
  if (file_ == nullptr) throw Fatal(ExitCode::kFile, fmt::format("{}: {}", path, std::strerror(errno)));
}

MetricsFile::~MetricsFile() { std::fclose(file_); }

void MetricsFile::write(const std::string& line) {
  if (std::fprintf(file_, "%s\n", line.c_str()) < 0 || std::fflush(file_) != 0)
    log_warn("{}: {}; training goes on", path_, std::strerror(errno));
}

void MetricsFile::step(const StepMetrics& metrics) { write(json_line(metrics)); }

void MetricsFile::evaluation(int64_t step, double loss) {
  write(fmt::format(R"({{"step":{},"validation_loss":{}}})", step, number(loss)));
}

// The places are numbers, names of tensors and brackets: nothing that JSON would have to escape.
void MetricsFile::not_finite(int64_t step, const std::vector<std::string>& places, int64_t skipped) {
  std::string list;
  for (const std::string& place : places) list += fmt::format(R"({}"{}")", list.empty() ? "" : ",", place);
  write(fmt::format(R"({{"step":{},"not_finite":[{}],"skipped_steps":{}}})", step, list, skipped));
}

void MetricsFile::checkpoint(int64_t step, int64_t bytes, double stall_seconds, double seconds) {
  write(fmt::format(R"({{"step":{},"checkpoint_bytes":{},"checkpoint_stall_ms":{},"checkpoint_ms":{}}})", step, bytes,
                    number(1e3 * stall_seconds), number(1e3 * seconds)));
}

int64_t step_of_line(const std::string& line) {
  int64_t step = 0;
  return std::sscanf(line.c_str(), "{\"step\":%" SCNd64, &step) == 1 ? step : INT64_MAX;
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
