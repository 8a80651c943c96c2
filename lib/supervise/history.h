// The driver's knowledge of a run's past, read from the event log events.jsonl, which outlives the driver.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "io/base/enum_names.h"
#include "lib/fault/events.h"

namespace tri {

// Why an attempt ended.
enum class CauseKind {
  kFinished,       // the run's last step is done
  kDrained,        // it was stopped
  kDrainedItself,  // status 75 without a request to stop: storage is unavailable
  kUsage,          // config or command line
  kFile,           // file or checkpoint
  kNotFinite,      // NaN or Inf in loss or gradients
  kDeath,          // a rank died by a signal
  kDevice,         // a device of a rank failed
  kCommunication,  // a peer could not be reached, and no rank is known to be at fault
  kHang,           // a rank made no progress, or was stopped
  kHangOfProgram,  // all ranks waited for each other, or the cause is unknown
  kNodeLost,       // its agent is silent and does not respond again
  kUnkillable,     // ranks of the attempt do not end
  kGpuSick,        // NVML requests a reset or replacement, or an XID shows that one is needed
  kGpuFault,       // an XID after which the program is restarted, or uncorrected memory errors
  kGpuSuspect,     // an XID, or NVLink trouble, that needs a closer look
  kStraggler,      // a rank was slower than others of its stage for long and was replaced
  kPortFlaps,      // a network port was down twice within minutes
  kPortErrors,     // a network port counts errors, which needs a closer look
  kNotStarted,     // the launcher ended before any rank had begun
  kSlowStart,      // a node's ranks started much later than the others': it may pull an image
  kUnknown,
};

template <>
struct EnumNames<CauseKind> {
  static constexpr std::array table{std::pair{CauseKind::kFinished, std::string_view("finished")},
                                    std::pair{CauseKind::kDrained, std::string_view("drained")},
                                    std::pair{CauseKind::kDrainedItself, std::string_view("set aside")},
                                    std::pair{CauseKind::kUsage, std::string_view("config or usage")},
                                    std::pair{CauseKind::kFile, std::string_view("file or checkpoint")},
                                    std::pair{CauseKind::kNotFinite, std::string_view("not finite")},
                                    std::pair{CauseKind::kDeath, std::string_view("death by signal")},
                                    std::pair{CauseKind::kDevice, std::string_view("device")},
                                    std::pair{CauseKind::kCommunication, std::string_view("communication")},
                                    std::pair{CauseKind::kHang, std::string_view("hang")},
                                    std::pair{CauseKind::kHangOfProgram, std::string_view("hang of the program")},
                                    std::pair{CauseKind::kNodeLost, std::string_view("node lost")},
                                    std::pair{CauseKind::kUnkillable, std::string_view("ranks do not end")},
                                    std::pair{CauseKind::kGpuSick, std::string_view("GPU sick")},
                                    std::pair{CauseKind::kGpuFault, std::string_view("GPU fault")},
                                    std::pair{CauseKind::kGpuSuspect, std::string_view("GPU suspect")},
                                    std::pair{CauseKind::kStraggler, std::string_view("straggler")},
                                    std::pair{CauseKind::kPortFlaps, std::string_view("port flaps")},
                                    std::pair{CauseKind::kPortErrors, std::string_view("port errors")},
                                    std::pair{CauseKind::kNotStarted, std::string_view("not started")},
                                    std::pair{CauseKind::kSlowStart, std::string_view("slow start")},
                                    std::pair{CauseKind::kUnknown, std::string_view("unknown")}};
};

struct AttemptCause {
  CauseKind kind = CauseKind::kUnknown;
  std::string node;  // the node at fault; for kFile, the one that had the error; "": none or unknown
  int world_rank = -1;
  int status = 0;
  std::string text;
  double time = 0;    // for a finding: when it was last seen, by the driver's monotonic clock; 0: now
  int64_t step = -1;  // step in which a rank failed, by its report or flight recorder; -1: unknown
};

struct PastAttempt {
  int64_t number = 0;  // from 1, over all starts of all jobs of the run
  std::string attempt, job;
  std::vector<std::string> nodes;
  double began = 0, ended = 0;  // seconds since 1970; 0: it has not ended, or no process was left to record its end
  double noticed = 0;           // when the driver began to end its remaining processes
  int64_t from_step = 0;        // step of the newest checkpoint when it began
  int64_t checkpoint = 0;       // ... and when it ended
  int64_t step = 0;             // the last step observed; cause.step is that of a failure
  int64_t resumed = 0;          // the step from which its ranks began, which may be from memory; 0: unknown
  AttemptCause cause;
};

struct Exclusion {
  std::string node, why;
  double since = 0, until = 0;  // seconds since 1970
};

struct RunHistory {
  std::vector<PastAttempt> attempts;  // in the order of their starts
  std::vector<Exclusion> exclusions;  // currently in force
};
RunHistory history_from(std::span<const RunEvent> events, double now);

// Returns for each slow rank of the attempt its newest event, if that says that its machine should be examined.
std::vector<RunEvent> stragglers_of(std::span<const RunEvent> events, const std::string& attempt);

// The events from which the history is read again.
RunEvent start_event(const PastAttempt& attempt);
RunEvent end_event(const PastAttempt& attempt);
RunEvent exclusion_event(const Exclusion& exclusion);
// Records the time that the doctor took until now; `node` "": on all nodes.
RunEvent diagnosis_event(const std::string& node, double seconds, int64_t step);
RunEvent clear_exclusion_event(const std::string& node);

std::string joined(std::span<const std::string> names);  // "node1,node2"
std::vector<std::string> split_names(const std::string& text);

}  // namespace tri
