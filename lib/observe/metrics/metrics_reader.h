// Reads metrics.jsonl: its lines, and the steps that remain after restarts, apart from the lost ones.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "io/base/error.h"
#include "lib/observe/metrics/expert_balance.h"
#include "lib/observe/metrics/step_times.h"

namespace tri {

inline constexpr int64_t kMetricsSchema = 1;
inline constexpr double kUnknown = std::numeric_limits<double>::quiet_NaN();  // an unrecorded figure

// A completed step. Figures that were not finite or not recorded are kUnknown.
struct StepRecord {
  int64_t step = 0, tokens = 0;  // tokens since the start of training
  double time = 0;               // its end, seconds since 1970
  double loss = kUnknown, grad_norm = kUnknown, learning_rate = kUnknown;
  bool no_targets = false;  // it was skipped, without a loss, because loss masks excluded all of its tokens
  double step_ms = kUnknown, tokens_per_s = kUnknown, tflops_per_rank = kUnknown, mfu = kUnknown;
  double imbalance = kUnknown;                       // StepMetrics::imbalance
  std::array<double, StepTimes::kKinds> times_ms{};  // of world rank 0, in the order of StepTimes::names()
  double gpu_mhz = kUnknown, gpu_watts = kUnknown, gpu_celsius = kUnknown, gpu_memory_bytes = kUnknown;  // the same
  int start = 0;  // the start of the run that ran it; 0 is the first
};

struct EvaluationRecord {
  int64_t step = 0;
  double time = 0, loss = kUnknown;
};

// The losses of the files of data.validation.
struct NamedEvaluationRecord {
  int64_t step = 0;
  double time = 0;
  std::vector<std::pair<std::string, double>> losses;  // by name, sorted
};

struct CheckpointRecord {
  int64_t step = 0, bytes = 0;
  double time = 0;
  double stall_seconds = 0;  // how long training waited for it
  double seconds = 0;        // until it was written
};

struct RestartRecord {
  int64_t step = 0;        // completed before it
  int64_t lost_steps = 0;  // completed before and to be repeated
  double time = 0;
};

struct NotFiniteRecord {
  int64_t step = 0;
  double time = 0;
  std::string places;  // the ranks' own descriptions
};

// The balance of a step's experts.
struct ExpertRecord {
  int64_t step = 0;
  double time = 0;
  std::vector<ExpertBalance> layers;
  std::vector<std::vector<uint16_t>> loads;  // [layer][expert]: percent of the layer's mean; 0 only without rows
};

struct StrangeLine {};  // not a line that MetricsFile (metrics.h) writes, or an incomplete one
struct OtherLine {};    // none of the above
using MetricsLine = std::variant<OtherLine, StrangeLine, StepRecord, EvaluationRecord, NamedEvaluationRecord,
                                 CheckpointRecord, RestartRecord, NotFiniteRecord, ExpertRecord>;
// Parses `line`, which has no newline. Does not set StepRecord::start.
MetricsLine read_metrics_line(std::string_view line);

// Calls take(line, at) for each complete line of the file from byte `from` on, which must begin a line, with its byte
// offset; from byte 0 if the file is shorter. Returns the offset of the next line. Fails if the file cannot be read
// (os_error ENOENT: there is none) or was written by a newer release; earlier lines have then been taken.
Result<int64_t> read_whole_lines(const std::string& path, int64_t from,
                                 const std::function<void(std::string_view line, int64_t at)>& take);

// Returns the step of the last step line in the last 256 KiB of the file, after its first `from` bytes. None if there
// is no such line or the file cannot be read.
std::optional<int64_t> last_step_in(const std::string& path, int64_t from);

struct RunMetrics {
  std::vector<StepRecord> steps;              // steps that count; ascending
  std::vector<StepRecord> lost;               // steps repeated or undone by a restart; in file order
  std::vector<EvaluationRecord> evaluations;  // evaluations that count
  std::vector<NamedEvaluationRecord> named_evaluations;
  std::vector<ExpertRecord> experts;          // those that count
  std::vector<CheckpointRecord> checkpoints;  // all checkpoints written
  std::vector<RestartRecord> restarts;
  std::vector<NotFiniteRecord> not_finite;
  int64_t strange_lines = 0;  // complete lines that could not be parsed

  // Returns the last step that counts and had targets; null if there is none.
  const StepRecord* last_with_targets() const;
  // Takes a line. A step that exists already, or precedes an existing one, undoes all steps from it on.
  void take(std::string_view line);

 private:
  void undo_after(int64_t step);
};

class MetricsReader {
 public:
  explicit MetricsReader(std::string path) : path_(std::move(path)) {}
  // Takes the complete lines added since the last call. A missing file has none; a file shorter than what was read is
  // read again. Fails if the file cannot be read or was written by a newer release.
  Result<void> poll();
  const RunMetrics& metrics() const { return metrics_; }

 private:
  std::string path_;
  int64_t at_ = 0;  // bytes read so far
  RunMetrics metrics_;
};

}  // namespace tri
