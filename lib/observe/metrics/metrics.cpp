#include "lib/observe/metrics/metrics.h"

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "io/base/clock.h"
#include "io/base/json.h"
#include "io/base/log.h"
#include "lib/observe/metrics/metrics_reader.h"

namespace tri {
namespace {

using OrderedJson = nlohmann::ordered_json;

// Rounds to this many significant digits. JSON has no NaN or infinity: they become null.
OrderedJson json_number(double value, int digits = 9) {
  return std::strtod(fmt::format("{:.{}g}", value, digits).c_str(), nullptr);
}
OrderedJson json_number(const std::optional<double>& value) { return value ? json_number(*value) : OrderedJson(); }

// Returns the line of `object`, a JSON object with at least one field.
std::string line_of(std::string_view object) {
  object.remove_suffix(1);
  return fmt::format("{},\"schema\":{},\"time\":{:.3f}}}\n", object, kMetricsSchema, process_wall_seconds());
}

}  // namespace

MetricsFile::MetricsFile(const std::string& path) {
  auto opened = LineFile::open(
      path, [](const std::string& message) { log_warn("{}", message); }, LineFile::kForever, LineFile::Need::kRequired);
  if (!opened) throw Fatal(ExitCode::kFile, opened.error().message);
  lines_ = std::move(opened).value();
}

MetricsFile::~MetricsFile() = default;  // waits until storage has all lines

void MetricsFile::write(const std::string& object) { lines_->append(line_of(object)); }

void MetricsFile::step(const StepMetrics& metrics) { write(json_line(metrics)); }

void MetricsFile::evaluation(int64_t step, double loss) {
  write(OrderedJson({{"step", step}, {"validation_loss", json_number(loss)}}).dump());
}

void MetricsFile::evaluation(int64_t step, const std::vector<std::pair<std::string, double>>& losses) {
  OrderedJson by_name = OrderedJson::object();
  for (const auto& [name, loss] : losses) by_name[name] = json_number(loss);
  write(OrderedJson({{"step", step}, {"validation", by_name}}).dump());
}

void MetricsFile::not_finite(int64_t step, const std::vector<std::string>& places, int64_t skipped) {
  write(OrderedJson({{"step", step}, {"not_finite", places}, {"skipped_steps", skipped}}).dump());
}

void MetricsFile::spike(int64_t step, double loss_limit, double grad_norm_limit, int64_t skipped) {
  const OrderedJson limits{{"loss_limit", json_number(loss_limit)}, {"grad_norm_limit", json_number(grad_norm_limit)}};
  write(OrderedJson({{"step", step}, {"spike", limits}, {"skipped_steps", skipped}}).dump());
}

void MetricsFile::ranks(const std::string& object) { write(object); }

void MetricsFile::fp8(const std::string& object) { write(object); }

void MetricsFile::experts(const std::string& object) { write(object); }

void MetricsFile::checkpoint(int64_t step, int64_t bytes, double stall_seconds, double seconds) {
  write(OrderedJson({{"step", step},
                     {"checkpoint_bytes", bytes},
                     {"checkpoint_stall_ms", json_number(1e3 * stall_seconds)},
                     {"checkpoint_ms", json_number(1e3 * seconds)}})
            .dump());
}

Result<void> begin_metrics(const std::string& path, int64_t completed) {
  int64_t restarts = 0, last_step = 0;  // evaluations and checkpoints belong to steps that are recorded already
  const auto whole = read_whole_lines(path, 0, [&](std::string_view text, int64_t) {
    const MetricsLine line = read_metrics_line(text);
    if (const auto* restart = std::get_if<RestartRecord>(&line)) ++restarts, last_step = restart->step;
    if (const auto* step = std::get_if<StepRecord>(&line)) last_step = step->step;
  });
  if (!whole && whole.error().os_error == ENOENT) return {};
  if (!whole) return whole.error();
  std::error_code problem;
  if (std::filesystem::file_size(path, problem) > static_cast<uintmax_t>(whole.value()) && !problem)
    std::filesystem::resize_file(path, static_cast<uintmax_t>(whole.value()), problem);
  if (problem) return file_error("{}: cannot remove its incomplete last line: {}", path, problem.message());
  if (whole.value() == 0) return {};
  std::ofstream file(path, std::ios::app);
  file << line_of(fmt::format(R"({{"restart":{},"step":{},"lost_steps":{}}})", restarts + 1, completed,
                              std::max<int64_t>(0, last_step - completed)));
  return file.flush() ? Result<void>{} : system_error(errno, "{}: cannot append a line", path);
}

std::string json_line(const StepMetrics& m) {
  OrderedJson line = {{"step", m.step}, {"samples", m.samples}, {"tokens", m.tokens}};
  if (m.no_targets) {
    line["no_targets"] = true;
  } else {
    line["loss"] = json_number(m.loss);
    line["grad_norm"] = json_number(m.grad_norm);
  }
  line["lr"] = json_number(m.learning_rate);
  line["step_ms"] = json_number(m.step_ms);
  line["tokens_per_s"] = json_number(m.tokens_per_s);
  line["tflops_per_rank"] = json_number(m.tflops_per_rank);
  line["mfu"] = json_number(m.mfu);
  line["mfu_causal"] = json_number(m.mfu_causal);
  if (m.mfu_fp8) line["mfu_fp8"] = json_number(m.mfu_fp8);
  if (m.imbalance) line["imbalance"] = json_number(*m.imbalance, 4);
  const auto seconds = m.times.values();
  for (size_t i = 0; i < seconds.size(); ++i)
    line[fmt::format("{}_ms", StepTimes::names()[i])] = json_number(1e3 * seconds[i], 4);
  line["data_bytes"] = m.data_bytes;
  if (m.gpu) {
    if (m.gpu->sm_mhz) line["gpu_mhz"] = *m.gpu->sm_mhz;
    if (m.gpu->milliwatts) line["gpu_watts"] = json_number(1e-3 * *m.gpu->milliwatts, 4);
    if (m.gpu->celsius) line["gpu_celsius"] = *m.gpu->celsius;
    if (m.gpu->memory_bytes) line["gpu_memory_bytes"] = *m.gpu->memory_bytes;
  }
  return line.dump();
}

std::string imbalance_text(double imbalance) {
  return imbalance >= 0.005 ? fmt::format("busiest dp +{:.0f} %", 100 * imbalance) : "";
}

std::string console_line(const StepMetrics& m, int64_t last_step, int64_t memory_bytes,
                         std::optional<double> remaining) {
  const int width = static_cast<int>(std::to_string(last_step).size());
  const std::string waits = exposed_text(m.times), imbalance = imbalance_text(m.imbalance.value_or(0));
  return fmt::format(
      "step {:>{}}/{}  {}  lr {:.2e}  {:.0f} ms  {} tok/s  {}{}{}{}  ETA {}", m.step, width, last_step,
      m.no_targets ? "no targets" : fmt::format("loss {:.4f}  grad {:.3f}", m.loss, m.grad_norm), m.learning_rate,
      m.step_ms, format_count(m.tokens_per_s), m.mfu ? fmt::format("MFU {:.1f} %  ", 100 * *m.mfu) : "",
      imbalance.empty() ? "" : imbalance + "  ", waits.empty() ? "" : waits + "  ", format_bytes(memory_bytes),
      format_duration(remaining.value_or(static_cast<double>(last_step - m.step)) * m.step_ms / 1000));
}

}  // namespace tri
