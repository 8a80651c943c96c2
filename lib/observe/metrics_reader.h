// The one reader of metrics.jsonl: its lines, and the steps that they leave, apart from those that were lost.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "io/base/error.h"
#include "lib/observe/step_times.h"

namespace tri {

inline constexpr int64_t kMetricsSchema = 1;
inline constexpr double kUnknown = std::numeric_limits<double>::quiet_NaN();  // of a figure that is not on record

// A step that is complete. Figures that were not finite, or are not on record, are kUnknown.
struct StepRecord {
  int64_t step = 0, tokens = 0;  // tokens since the start of training
  double time = 0;               // its end, seconds since 1970
  double loss = kUnknown, grad_norm = kUnknown, learning_rate = kUnknown;
  double step_ms = kUnknown, tokens_per_s = kUnknown, tflops_per_rank = kUnknown, mfu = kUnknown;
  std::array<double, StepTimes::kKinds> times_ms{};  // of world rank 0, in the order of StepTimes::names()
  int start = 0;                                     // of the run, which did it: 0 is the first
};

struct EvaluationRecord {
  int64_t step = 0;
  double time = 0, loss = kUnknown;
};

struct CheckpointRecord {
  int64_t step = 0, bytes = 0;
  double time = 0;
  double stall_seconds = 0;  // training waited for it
  double seconds = 0;        // until it was written
};

struct RestartRecord {
  int64_t step = 0;        // done before it
  int64_t lost_steps = 0;  // done before, and to be done again
  double time = 0;
};

struct NotFiniteRecord {
  int64_t step = 0;
  double time = 0;
  std::string places;  // the ranks, in their own words
};

struct StrangeLine {};  // not a line that MetricsFile (metrics.h) writes, or not all of one
struct OtherLine {};    // nothing of the above
using MetricsLine = std::variant<OtherLine, StrangeLine, StepRecord, EvaluationRecord, CheckpointRecord, RestartRecord,
                                 NotFiniteRecord>;
// `line` without its end. StepRecord::start is not set.
MetricsLine read_metrics_line(std::string_view line);

// Calls take(line, at) for each whole line of the file from byte `from` on, the start of a line, with its first byte;
// from byte 0 on if the file is shorter. Returns where the next line begins. Error: the file cannot be read (os_error
// ENOENT: there is none), or a newer release wrote it; the lines before the error were taken.
Result<int64_t> read_whole_lines(const std::string& path, int64_t from,
                                 const std::function<void(std::string_view line, int64_t at)>& take);

// The step of the last line of a step among the last 256 KiB of the file, and after its first `from` bytes. None: there
// is no such line, or the file cannot be read.
std::optional<int64_t> last_step_in(const std::string& path, int64_t from);

struct RunMetrics {
  std::vector<StepRecord> steps;  // those that count: step grows
  std::vector<StepRecord> lost;   // those that were done again, or were undone by a restart; in the order of the file
  std::vector<EvaluationRecord> evaluations;  // those that count
  std::vector<CheckpointRecord> checkpoints;  // all that were written
  std::vector<RestartRecord> restarts;
  std::vector<NotFiniteRecord> not_finite;
  int64_t strange_lines = 0;  // whole lines that could not be read

  // A step that is there already, or lies behind one that is, undoes those from it on.
  void take(std::string_view line);

 private:
  void undo_after(int64_t step);
};

class MetricsReader {
 public:
  explicit MetricsReader(std::string path) : path_(std::move(path)) {}
  // Takes the whole lines that have come since the last call. A file that is not there has none; one that has become
  // shorter than what was read is read again. Error: the file cannot be read, or a newer release wrote it.
  Result<void> poll();
  const RunMetrics& metrics() const { return metrics_; }

 private:
  std::string path_;
  int64_t at_ = 0;  // what was read
  RunMetrics metrics_;
};

}  // namespace tri
