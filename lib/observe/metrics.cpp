#include "lib/observe/metrics.h"

#include <cerrno>
#include <cinttypes>
#include <cstdlib>
#include <cstring>
#include <nlohmann/json.hpp>

#include "io/base/error.h"
#include "io/base/log.h"

namespace tri {
namespace {

using Json = nlohmann::ordered_json;

// With so many significant digits. JSON has no NaN or infinity: null stands for a number that is not finite.
Json number(double value, int digits = 9) {
  return std::strtod(fmt::format("{:.{}g}", value, digits).c_str(), nullptr);
}
Json number(const std::optional<double>& value) { return value ? number(*value) : Json(); }

}  // namespace

MetricsFile::MetricsFile(const std::string& path) : path_(path), file_(std::fopen(path.c_str(), "a")) {
  if (file_ == nullptr) throw Fatal(ExitCode::kFile, fmt::format("{}: {}", path, std::strerror(errno)));
}

MetricsFile::~MetricsFile() { std::fclose(file_); }

void MetricsFile::write(const std::string& line) {
  if (std::fputs((line + "\n").c_str(), file_) == EOF || std::fflush(file_) != 0)
    log_warn("{}: {}; training goes on", path_, std::strerror(errno));
}

void MetricsFile::step(const StepMetrics& metrics) { write(json_line(metrics)); }

void MetricsFile::evaluation(int64_t step, double loss) {
  write(Json({{"step", step}, {"validation_loss", number(loss)}}).dump());
}

void MetricsFile::checkpoint(int64_t step, int64_t bytes, double stall_seconds, double seconds) {
  write(Json({{"step", step},
              {"checkpoint_bytes", bytes},
              {"checkpoint_stall_ms", number(1e3 * stall_seconds)},
              {"checkpoint_ms", number(1e3 * seconds)}})
            .dump());
}

// A run that goes on looks at every line: only its beginning is read.
int64_t step_of_line(const std::string& line) {
  int64_t step = 0;
  return std::sscanf(line.c_str(), "{\"step\":%" SCNd64, &step) == 1 ? step : INT64_MAX;
}

std::string json_line(const StepMetrics& m) {
  Json line = {{"step", m.step},
               {"samples", m.samples},
               {"tokens", m.tokens},
               {"loss", number(m.loss)},
               {"grad_norm", number(m.grad_norm)},
               {"lr", number(m.learning_rate)},
               {"step_ms", number(m.step_ms)},
               {"tokens_per_s", number(m.tokens_per_s)},
               {"tflops_per_rank", number(m.tflops_per_rank)},
               {"mfu", number(m.mfu)},
               {"mfu_causal", number(m.mfu_causal)}};
  const auto seconds = m.times.values();
  for (size_t i = 0; i < seconds.size(); ++i)
    line[fmt::format("{}_ms", StepTimes::names()[i])] = number(1e3 * seconds[i], 4);
  line["data_bytes"] = m.data_bytes;
  return line.dump();
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
