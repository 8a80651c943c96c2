// The state of a run, seen from outside, without MPI and without its ranks' help: read from the flight recorders of its
// ranks on this machine and from the files of its folder, whether the run works, hangs, or has ended.
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
#include "io/flight_recorder/record.h"
#include "lib/fault/events.h"
#include "lib/fault/hang_locator.h"
#include "lib/observe/metrics/metrics_reader.h"

namespace tri {

enum class RunState {
  kRuns,      // a rank of this machine runs and makes progress
  kStalled,   // a rank of this machine runs, but none has made progress for some time
  kEnded,     // without an error: done, or stopped on request
  kFailed,    // a rank failed, or the watchdog ended the job
  kGone,      // the ranks of this machine are gone without a final event
  kUnknown,   // unknown here: it has never started, or it runs on other machines
  kRestarts,  // between two attempts of a supervised run: the supervisor runs, the ranks of the newest do not yet
};

template <>
struct EnumNames<RunState> {
  static constexpr std::array table{std::pair{RunState::kRuns, std::string_view("runs")},
                                    std::pair{RunState::kStalled, std::string_view("stands still")},
                                    std::pair{RunState::kEnded, std::string_view("ended")},
                                    std::pair{RunState::kFailed, std::string_view("failed")},
                                    std::pair{RunState::kGone, std::string_view("gone")},
                                    std::pair{RunState::kUnknown, std::string_view("unknown")},
                                    std::pair{RunState::kRestarts, std::string_view("restarting")}};
};

// The rate of the newest steps in metrics.jsonl.
struct RunRate {
  int64_t step = 0;             // the last completed one
  double seconds_per_step = 0;  // the median of the last `num_steps` steps
  int64_t num_steps = 0;
  double tokens_per_s = 0;
  int64_t tokens = 0;  // trained since the start of training
  // Of the last one of these steps that had targets; none: not finite, or no such step (no_targets).
  std::optional<double> loss;
  bool no_targets = false;
  std::optional<double> imbalance;  // the median of these steps' StepMetrics::imbalance
  double age = 0;                   // seconds since its completion
};

// The newest evaluation that counts. Losses that are not finite are kUnknown.
struct RunValidation {
  int64_t step = 0;
  std::optional<double> loss;                           // of the sources; none: not evaluated
  std::vector<std::pair<std::string, double>> by_name;  // of the files of data.validation, sorted
};

struct SlowRank {
  int world_rank = 0;
  double seconds = 0;    // of its last step
  double of_median = 0;  // relative to the median of all ranks
};

struct RunStatus {
  std::string run_dir, host;  // run_dir is absolute; host is this machine
  std::string attempt, job;   // of the newest start; "": none is known
  RunState state = RunState::kUnknown;
  int world_size = 0;                      // 0: unknown
  int64_t step = 0, steps = 0;             // completed; total (0: unknown)
  int64_t tokens = 0;                      // of the whole run, if its steps differ in size; else 0
  std::vector<RankRecord> ranks;           // of the newest attempt on this machine, by world rank
  std::optional<double> newest_event_age;  // seconds, minimum over these ranks
  std::optional<RunRate> rate;
  std::optional<RunValidation> validation;
  std::optional<ExpertRecord> experts;  // the newest balance of the newest attempt's experts
  std::optional<SlowRank> slowest;
  std::vector<RunEvent> stragglers;  // ranks of the newest attempt that are slower than their peers, by rank
  std::optional<HangVerdict> hang;   // if it makes no progress and all its ranks are on this machine
  std::optional<RunEvent> cause;     // what ended the newest attempt
  std::optional<RunEvent> end;       // its end without an error
  std::string origin;                // of the attempt's state (describe_origin); "" if not recorded
  std::string restart;               // of kRestarts: what ended the last attempt, and what the supervisor does
  std::string newest_dump;           // a folder; "": none
  std::string unread_events;         // why events.jsonl could not be read; "": it was, or there is none
  std::string last_log_line;
  std::vector<std::string> last_log_lines;  // some of them, the newest last
};

// How far back in metrics.jsonl to look for the last evaluation.
enum class EvaluationSearch {
  kRecent,   // in what is read for other reasons
  kFarBack,  // in the last 4 MiB
};

// Reads the state of a run. Fails with kUsage if `run_dir` is not a run's folder.
Result<RunStatus> read_run_status(const std::string& run_dir, EvaluationSearch search = EvaluationSearch::kFarBack);

// Returns the seconds that the rest of the run takes at its rate; none: the rate or the length is unknown, or no step
// remains.
std::optional<double> seconds_left(const RunStatus& status);

// Returns the state for messages: "no progress" for kStalled, whose JSON name is older, else its name.
std::string_view state_text(RunState state);

// Formats some lines for users, then a table of ranks, or of groups of equal ranks if there are many.
std::string status_text(const RunStatus& status);

// Returns one JSON object; null stands for unknown values:
//   run_dir, host, attempt, job, world_size, step, steps, newest_event_age_s, last_log_line, newest_dump
//   state ("runs", "stands still", "ended", "failed", "gone", "unknown", "restarting"), restart, origin
//   rate {step, step_ms, tokens_per_s, loss, imbalance, age_s}
//   validation {step, loss, by_name {name: loss}}
//   experts {step, max_load, dead, entropy}: the worst of all layers
//   slowest {rank, step_ms, of_median}
//   stragglers [{rank, host, slowdown, text}]
//   hang {kind, headline, culprits [{rank, kind, host, text}], waiting}
//   cause {time, kind, rank, host, text}, end {time, code, text}
//   ranks [{rank, place {axis: position}, host, gpu, process, process_state, phase, phase_s, host_state, host_state_s,
//           step, step_ms, action, last_event_age_s, failure}]
std::string status_json(const RunStatus& status);

// A dump of the watchdog: a folder in RUN_DIR/hang. `dump`: its name or path; "": the newest. Reading fails with kUsage
// if there is no such folder, and with kFile if the dump has no report or it can't be read.
struct HangDump {
  std::string folder;
  std::string text;  // report.txt
  std::string json;  // report.json
};
Result<HangDump> read_hang_dump(const std::string& run_dir, const std::string& dump);

}  // namespace tri
