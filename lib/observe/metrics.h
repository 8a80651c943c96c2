// What a run says about itself: metrics.jsonl for machines, one line a step for people.
#pragma once

#include <cstdint>
#include <cstdio>
#include <optional>
#include <string>

#include "lib/observe/step_times.h"

namespace tri {

struct StepMetrics {
  int64_t step = 0;     // 1 is the first completed step
  int64_t samples = 0;  // consumed since the start of training
  int64_t tokens = 0;
  double loss = 0, grad_norm = 0, learning_rate = 0;
  double step_ms = 0;
  double tokens_per_s = 0;
  double tflops_per_rank = 0;
  std::optional<double> mfu;  // share of the device's peak; none on the CPU
  StepTimes times;            // this rank's
};

// Appends one JSON object a line; floats with 9 significant digits, so that equal floats print equal.
class MetricsFile {
 public:
  explicit MetricsFile(const std::string& path);  // Fatal(kFile) when it can't be opened
  ~MetricsFile();
  MetricsFile(const MetricsFile&) = delete;
  MetricsFile& operator=(const MetricsFile&) = delete;

  void step(const StepMetrics& metrics);
  void evaluation(int64_t step, double loss);
  void checkpoint(int64_t step, int64_t bytes, double stall_seconds, double seconds);

 private:
  void write(const std::string& line);

  std::string path_;
  std::FILE* file_;
};

std::string json_line(const StepMetrics& metrics);
int64_t step_of_line(const std::string& line);  // of metrics.jsonl; the largest number for what is no line of it

// "step   120/300  loss 2.1034  grad 0.81  lr 2.4e-03  352 ms  11.6k tok/s  ETA 1m03s"
std::string console_line(const StepMetrics& metrics, int64_t last_step, int64_t memory_bytes);

std::string format_bytes(int64_t bytes);      // "1.50 GiB"
std::string format_duration(double seconds);  // "1h02m", "3m07s", "12.3 s"
std::string format_count(double count);       // "11.6k", "1.32M", "175B"

// Lines of progress: on a terminal the latest stands on a line that is overwritten until `keep` makes it stay;
// elsewhere only kept lines are printed.
class ProgressLine {
 public:
  ProgressLine();
  ~ProgressLine();
  void show(const std::string& text, bool keep);

 private:
  bool terminal_;
  bool open_ = false;
};

}  // namespace tri
