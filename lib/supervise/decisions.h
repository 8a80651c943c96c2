// Decides what to do when an attempt has ended, by one table: cause -> action. Pure functions: the same history gives
// the same decision.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "io/base/enum_names.h"
#include "lib/supervise/history.h"
#include "lib/supervise/thresholds.h"

namespace tri {

enum class Response {
  kDone,       // the run is finished
  kLeave,      // it was stopped, or its ranks exited with 75 by themselves: the driver also exits
  kRetry,      // another attempt, possibly on the same nodes
  kExclude,    // another attempt without the node
  kDoctor,     // let the doctor examine the node, then decide again
  kStop,       // another attempt would not help
  kReport,     // a report to the user; the attempt continues
  kReplace,    // the attempt saves a checkpoint and ends, so that a spare can take the node's place
  kSuccessor,  // the allocation has too few nodes left: another job must continue without the excluded ones
};

template <>
struct EnumNames<Response> {
  static constexpr std::array table{std::pair{Response::kDone, std::string_view("done")},
                                    std::pair{Response::kLeave, std::string_view("leave")},
                                    std::pair{Response::kRetry, std::string_view("retry")},
                                    std::pair{Response::kExclude, std::string_view("exclude")},
                                    std::pair{Response::kDoctor, std::string_view("doctor")},
                                    std::pair{Response::kStop, std::string_view("stop")},
                                    std::pair{Response::kReport, std::string_view("report")},
                                    std::pair{Response::kReplace, std::string_view("relieve")},
                                    std::pair{Response::kSuccessor, std::string_view("successor")}};
};

// The driver's exit status if consecutive attempts made no newer checkpoint.
inline constexpr int kNoProgressStatus = static_cast<int>(ExitCode::kNoProgress);

enum class Diagnosis { kHealthy, kSuspect, kBad, kUnknown };
// The diagnosis for an exit status of `trireme doctor`: 0 healthy, 40 suspect, 41 bad, any other unknown.
Diagnosis diagnosis_of(int doctor_status);

struct Situation {
  std::span<const PastAttempt> attempts;   // the last is the one that has ended
  std::optional<Diagnosis> diagnosis;      // of the node at fault; none: the doctor has not examined it
  int nodes_needed = 1, nodes_usable = 1;  // usable: not excluded and not lost; includes the node at fault
  Thresholds thresholds;
  std::string job;  // for decide_in_passing: the job of the current attempt
};

struct Decision {
  Response action = Response::kRetry;
  std::string node;  // of kExclude, kDoctor, kReport and kReplace
  int status = 0;    // of kStop, kLeave and kSuccessor: the driver's exit status
  std::string why;   // one line for the log
};

Decision decide(const Situation& situation);

// Decides about a finding while the attempt continues. Returns kReplace if there is a spare and, for a straggler, the
// doctor has not examined the node within `repeat_hours`; else kReport.
Decision decide_at_work(const Situation& situation, const AttemptCause& finding, double now);

// Decides about the nodes that the doctor has examined before the first attempt. An unhealthy node is reported, and a
// bad one excluded, unless most are bad, which is not a node's fault, or too few would remain.
std::vector<Decision> decide_before_start(std::span<const std::pair<std::string, Diagnosis>> nodes, int nodes_needed,
                                          int nodes_usable);

// Returns the exclusion of a node whose fault shows only later: the last loss that was not finite occurred on it in an
// attempt of the same job, at a step that this attempt is the first to pass. Nothing if there is no such node.
std::optional<Decision> decide_in_passing(const Situation& situation, int64_t step);

// Returns the attempts of the last one's job, at the end of the list, that have saved no newer checkpoint, on storage
// or in memory: after a new submission the count restarts. Attempts that were stopped do not count.
int attempts_without_checkpoint(std::span<const PastAttempt> attempts);

}  // namespace tri
