// The metrics of a run: metrics.jsonl for programs, one console line per step for users.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "io/base/error.h"
#include "io/base/format.h"
#include "io/base/line_file.h"
#include "io/nvml/nvml.h"
#include "lib/observe/metrics/step_times.h"

namespace tri {

struct StepMetrics {
  int64_t step = 0;     // 1 is the first completed step
  int64_t samples = 0;  // consumed since the start of training
  int64_t tokens = 0;
  // Loss masks exclude every token of the step, which is skipped: it has neither a loss nor gradients.
  bool no_targets = false;
  double loss = 0, grad_norm = 0;  // NaN without targets
  double learning_rate = 0;
  double step_ms = 0;
  double tokens_per_s = 0;
  double tflops_per_rank = 0;
  std::optional<double> mfu;         // share of the device's peak; none on the CPU
  std::optional<double> mfu_causal;  // counting only unmasked attention (AttentionWork::kCausal)
  std::optional<double> mfu_fp8;     // with FP8 GEMMs: share of the device's FP8 peak
  // With data.document_mask: how many more FLOPs the busiest dp rank's documents need than the mean rank's; 0.1: 10 %.
  std::optional<double> imbalance;
  StepTimes times;                // this rank's
  int64_t data_bytes = 0;         // read from token files by this rank, either for its node or for itself
  std::optional<GpuSensors> gpu;  // this rank's, seconds old; none on the CPU
};

// Appends one JSON object per line, with 9 significant digits so that equal floats print equally. Every line ends with
// "time", when it was written, in seconds since 1970. Used only by world rank 0.
class MetricsFile {
 public:
  explicit MetricsFile(const std::string& path);  // Fatal(kFile) when it can't be opened
  ~MetricsFile();
  MetricsFile(const MetricsFile&) = delete;
  MetricsFile& operator=(const MetricsFile&) = delete;

  // A step without targets has "no_targets":true instead of "loss" and "grad_norm".
  void step(const StepMetrics& metrics);
  void evaluation(int64_t step, double loss);
  // Writes the losses of the files of data.validation, by name.
  void evaluation(int64_t step, const std::vector<std::pair<std::string, double>>& losses);
  // `places`: the ranks whose values were not finite. `skipped`: steps skipped since this start of the run, including
  // this one if it was; 0: it ends the run.
  void not_finite(int64_t step, const std::vector<std::string>& places, int64_t skipped);
  // A step that was skipped because its loss or gradient norm was above the limit. `skipped`: such steps since this
  // start of the run.
  void spike(int64_t step, double loss_limit, double grad_norm_limit, int64_t skipped);
  // Writes a window of all ranks' times, ranks_json() (lib/observe/ranks/rank_monitor.h). Its line has no "step" field.
  void ranks(const std::string& object);
  // Writes the statistics of a step's FP8 casts, fp8_json() (lib/observe/status/fp8_report.h). Its line has no "step".
  void fp8(const std::string& object);
  // Writes the balance of a step's experts, expert_json() (lib/observe/status/expert_report.h). Its line has no "step".
  void experts(const std::string& object);
  void checkpoint(int64_t step, int64_t bytes, double stall_seconds, double seconds);
  void finish() { lines_->flush(); }  // waits until storage has all lines, as the destructor does

 private:
  void write(const std::string& object);

  std::unique_ptr<LineFile> lines_;
};

std::string json_line(const StepMetrics& metrics);

// Returns "busiest dp +12 %" of StepMetrics::imbalance; "" if it is below half a percent or not known.
std::string imbalance_text(double imbalance);

// Prepares the metrics file at `path` for a start of the run that continues after `completed` steps. Existing lines
// stay unchanged, except that an incomplete last line is removed. If earlier starts have written steps, adds a line for
// this start:
//   {"restart":2,"step":10,"lost_steps":5,"time":1763812345.678}
// Steps in earlier lines beyond step 10, five since the previous restart, were lost and are repeated below.
Result<void> begin_metrics(const std::string& path, int64_t completed);

// Returns "step   120/300  loss 2.1034  grad 0.81  lr 2.4e-03  352 ms  11.6k tok/s  ETA 1m03s".
// `remaining`: how many steps as long as this one the rest of the run takes; none: last_step minus this one.
std::string console_line(const StepMetrics& metrics, int64_t last_step, int64_t memory_bytes,
                         std::optional<double> remaining = std::nullopt);

}  // namespace tri
