// How a run's wall time was spent, across attempts and jobs: every second since the first submission belongs to exactly
// one category (wall_time_meanings). A pure function of the run folder's events.jsonl and metrics.jsonl.
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

// The meaning of a category, and its name in Google's ml-goodput-measurement.
struct WallTimeMeaning {
  WallTime category;
  std::string_view meaning;
  std::string_view google;
};
const std::array<WallTimeMeaning, kNumWallTimes>& wall_time_meanings();  // in the order of the enumerators

// A completed step: a line of metrics.jsonl.
struct StepLine {
  double time = 0;  // its end, seconds since 1970
  double seconds = 0;
  double data_seconds = 0;  // part of `seconds` in which compute waited for the batch
  int64_t step = 0;
};

// The lines of metrics.jsonl that an attempt wrote.
struct AttemptSteps {
  std::string attempt;
  std::vector<StepLine> steps;  // in file order
  int64_t newest_checkpoint = 0;
};

// A run folder's record of its past.
struct EventsAndSteps {
  std::vector<RunEvent> events;  // in file order
  std::vector<AttemptSteps> steps;
};

// Reads both files. Fails if events.jsonl can't be read (os_error ENOENT: there is none). Without metrics.jsonl there
// are no steps; incomplete lines are skipped.
Result<EventsAndSteps> read_events_and_steps(const std::string& run_dir);

struct WallInterval {
  double begin = 0, end = 0;  // seconds since 1970
  WallTime category = WallTime::kOther;
  std::string phase;  // for kStartup; else ""
};

struct AttemptTime {
  std::string attempt, job;
  double begin = 0, end = 0;               // its first and last activity
  int64_t first_step = 0, last_step = 0;   // completed before it, and by its end; equal: none
  int64_t kept_steps = 0, lost_steps = 0;  // of its own steps
  double productive_seconds = 0;
  std::optional<int> code;  // exit status, if it ended without an error or a failure gave one
  bool failed = false;      // it has a first cause
  std::string outcome;      // as text; "" if none is known
  std::string origin;       // of its state (describe_origin); "" if not recorded
};

struct EffectiveTime {
  std::vector<WallInterval> intervals;  // from `begin` to `end`, without gaps or overlaps; adjacent ones differ
  double begin = 0, end = 0;            // the first submission or activity; the last activity
  std::array<double, kNumWallTimes> seconds{};
  std::vector<std::pair<std::string, double>> startup_phases;  // longest first
  std::vector<AttemptTime> attempts;
  int64_t kept_steps = 0, lost_steps = 0;
  double median_step_seconds = 0;  // of the kept steps
  double data_wait_seconds = 0;    // within productive steps
  double first_began = 0;          // start of the first attempt's processes

  double wall() const { return end - begin; }
  double of(WallTime category) const { return seconds[static_cast<size_t>(category)]; }
  double effective() const { return wall() > 0 ? of(WallTime::kProductive) / wall() : 0; }  // a share of 1
};

// Computes the time by category. Returns none if no attempt has ever held the run folder.
//
// Attempts are ordered by their first lines in events.jsonl. If an attempt's clock dates it before the end of the
// previous one, all its times are shifted to begin there: its durations count, not its clock.
std::optional<EffectiveTime> effective_time(const EventsAndSteps& history);

// Other definitions of effective time in the literature.
struct EffectiveShare {
  std::string_view name;     // machine-readable
  std::string_view title;    // author and term
  std::string_view formula;  // in terms of categories
  double share = 0;          // of 1
};
std::vector<EffectiveShare> effective_shares(const EffectiveTime& time);

// Returns Google's badput: seconds by its names, longest first. Together with goodput they add up to the time since the
// first start.
std::vector<std::pair<std::string, double>> google_badput(const EffectiveTime& time);

// Format the time as text of at most about 40 lines, as one line for logs, and as JSON (app/JSON.md lists its fields).
std::string effective_time_text(const EffectiveTime& time);
std::string effective_time_line(const EffectiveTime& time);
std::string effective_time_json(const EffectiveTime& time);

}  // namespace tri
