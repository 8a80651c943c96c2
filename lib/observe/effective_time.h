// Where a run's wall time went, across attempts and jobs: every second since the first submission in exactly one
// category (wall_time_meanings). A pure function of the run folder's events.jsonl and metrics.jsonl.
//
//   events + steps  ->  attempts  ->  adjacent intervals  ->  seconds by category
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "io/base/enum_names.h"
#include "io/base/error.h"
#include "lib/fault/events.h"

namespace tri {

enum class WallTime {
  kQueue,
  kStartup,
  kLoad,
  kProductive,
  kRepeated,
  kCheckpoint,
  kEvaluation,
  kDetection,
  kDiagnosis,
  kRestart,
  kStopped,
  kOther,
};
inline constexpr int kNumWallTimes = 12;

template <>
struct EnumNames<WallTime> {
  static constexpr std::array table{
      std::pair{WallTime::kQueue, std::string_view("queue")},
      std::pair{WallTime::kStartup, std::string_view("startup")},
      std::pair{WallTime::kLoad, std::string_view("load")},
      std::pair{WallTime::kProductive, std::string_view("productive")},
      std::pair{WallTime::kRepeated, std::string_view("repeated")},
      std::pair{WallTime::kCheckpoint, std::string_view("checkpoint")},
      std::pair{WallTime::kEvaluation, std::string_view("evaluation")},
      std::pair{WallTime::kDetection, std::string_view("detection")},
      std::pair{WallTime::kDiagnosis, std::string_view("diagnosis")},
      std::pair{WallTime::kRestart, std::string_view("restart")},
      std::pair{WallTime::kStopped, std::string_view("stopped")},
      std::pair{WallTime::kOther, std::string_view("other")},
  };
};

// What each category means, and what Google's ml-goodput-measurement calls it.
struct WallTimeMeaning {
  WallTime category;
  std::string_view meaning;
  std::string_view google;
};
const std::array<WallTimeMeaning, kNumWallTimes>& wall_time_meanings();  // in the order of the enumerators

// A step that is complete: a line of metrics.jsonl.
struct StepLine {
  double time = 0;  // its end, seconds since 1970
  double seconds = 0;
  double data_seconds = 0;  // of these: compute waited for the batch
  int64_t step = 0;
};

// What an attempt wrote into metrics.jsonl.
struct AttemptSteps {
  std::string attempt;
  std::vector<StepLine> steps;  // in the order of the file
  int64_t newest_checkpoint = 0;
};

// What a run folder says of its past.
struct EventsAndSteps {
  std::vector<RunEvent> events;  // in the order of the file
  std::vector<AttemptSteps> steps;
};

// Error: events.jsonl can't be read (os_error ENOENT: there is none). No metrics.jsonl, no steps; torn lines are passed
// over.
Result<EventsAndSteps> read_events_and_steps(const std::string& run_dir);

struct WallInterval {
  double begin = 0, end = 0;  // seconds since 1970
  WallTime category = WallTime::kOther;
  std::string phase;  // of kStartup; else ""
};

struct AttemptTime {
  std::string attempt, job;
  double begin = 0, end = 0;               // its first and its last sign of life
  int64_t first_step = 0, last_step = 0;   // done before it, and by it; equal: none
  int64_t kept_steps = 0, lost_steps = 0;  // of those that it did
  double productive_seconds = 0;
  std::optional<int> code;  // exit status, if it ended without an error or a failure gave one
  bool failed = false;      // it has a first cause
  std::string outcome;      // as text; "" while none is known
};

struct EffectiveTime {
  std::vector<WallInterval> intervals;  // from `begin` to `end`, without gaps or overlaps; neighbours differ
  double begin = 0, end = 0;            // the first submission, or the first sign of life; the last sign of life
  std::array<double, kNumWallTimes> seconds{};
  std::vector<std::pair<std::string, double>> startup_phases;  // the longest first
  std::vector<AttemptTime> attempts;
  int64_t kept_steps = 0, lost_steps = 0;
  double median_step_seconds = 0;  // of the kept steps
  double data_wait_seconds = 0;    // within productive steps
  double first_began = 0;          // the first attempt's processes

  double wall() const { return end - begin; }
  double of(WallTime category) const { return seconds[static_cast<size_t>(category)]; }
  double effective() const { return wall() > 0 ? of(WallTime::kProductive) / wall() : 0; }  // a share of 1
};

// None: no attempt has ever held the run folder.
//
// The order of attempts is that of their first lines in events.jsonl. Where a clock says that an attempt began before
// the one before it had ended, all its times are moved to begin there: its durations count, not its clock.
std::optional<EffectiveTime> effective_time(const EventsAndSteps& history);

// The field's definitions of the same thing.
struct EffectiveShare {
  std::string_view name;     // for machines
  std::string_view title;    // whose it is, and what it is called
  std::string_view formula;  // in categories
  double share = 0;          // of 1
};
std::vector<EffectiveShare> effective_shares(const EffectiveTime& time);

// Google's badput: seconds by its names, the longest first; with goodput they add up to the time since the first start.
std::vector<std::pair<std::string, double>> google_badput(const EffectiveTime& time);

// As text of at most about 40 lines; as one line, for logs; as JSON (app/JSON.md has its fields).
std::string effective_time_text(const EffectiveTime& time);
std::string effective_time_line(const EffectiveTime& time);
std::string effective_time_json(const EffectiveTime& time);

}  // namespace tri
