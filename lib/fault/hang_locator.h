// Finds the rank that blocks a job: builds a graph of which rank waits for which from the operation counters in their
// flight recorders. A rank that waits for no other is the suspect; if all wait in a cycle, the program is at fault.
//
// The nodes are activities: for each rank the training (its thread and its streams), the readers of tokens, and
// the writer of a checkpoint (wait_graph.h). Ranks that only wait are never blamed.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "io/base/enum_names.h"
#include "io/flight_recorder/record.h"

namespace tri {

enum class HangKind {
  kProcessGone,     // its process ended without an error message, or it left no flight record
  kProcessStopped,  // by a signal
  kHostBusy,        // its thread runs, or sleeps, in host code
  kDeviceBusy,      // its device does not finish its work
  kTransfer,        // all members have sent, and one of them has not received the data
  kDataReader,      // tokens are not read
  kStorage,         // files are not read or written
  kCycle,           // ranks wait for each other in a cycle: a fault of the program, not of a node
  kFailed,          // it reported its own failure before any other rank did
  kUnknown,         // the records do not show it
};

template <>
struct EnumNames<HangKind> {
  static constexpr std::array table{std::pair{HangKind::kProcessGone, std::string_view("process gone")},
                                    std::pair{HangKind::kProcessStopped, std::string_view("process stopped")},
                                    std::pair{HangKind::kHostBusy, std::string_view("host code busy")},
                                    std::pair{HangKind::kDeviceBusy, std::string_view("device busy")},
                                    std::pair{HangKind::kTransfer, std::string_view("transfer incomplete")},
                                    std::pair{HangKind::kDataReader, std::string_view("data reader")},
                                    std::pair{HangKind::kStorage, std::string_view("storage")},
                                    std::pair{HangKind::kCycle, std::string_view("software fault")},
                                    std::pair{HangKind::kFailed, std::string_view("failed")},
                                    std::pair{HangKind::kUnknown, std::string_view("unknown")}};
};

// What triggered the search: a rank's phase, or a writer of its files, had no progress for this long.
struct HangTrigger {
  int world_rank = -1;  // -1: requested, without a deadline
  RunPhase phase = RunPhase::kStep;
  bool writer = false;  // a writer of a checkpoint or of lines caused it, not the phase
  double seconds = 0;
};

struct HangSuspect {
  int world_rank = 0;
  HangKind kind = HangKind::kUnknown;
  std::string text;  // "rank 13 [pp1 dp0 tp1] on node07 (GPU ...) failed in forward of microbatch 3, chunk 1"
};

struct HangEdge {
  int from = 0, to = 0;  // world ranks
  std::string text;      // "rank 3 waits for all-gather 8812 on tp of rank 2, which is at 8811"
};

// A healthy run, or a job that is suspended as a whole, has no suspects; the headline says so.
struct HangVerdict {
  HangKind kind = HangKind::kUnknown;
  std::vector<HangSuspect> suspects;  // most certain first, at most 64; for a cycle or a stuck transfer: its ranks
  std::vector<HangEdge> cycle;
  int num_waiting = 0;                 // ranks that wait, directly or not, for the first suspect
  std::optional<HangEdge> first_wait;  // of the ranks that wait for it directly, the one that has waited longest
  std::string headline;                // one line: suspect, its activity, number of waiting ranks, the longest wait
};

// `records`: at most one per rank, in any order; ranks without a record count as gone. Time and memory are proportional
// to the number of channels of all ranks, and so to the number of ranks.
HangVerdict locate_hang(std::span<const RankRecord> records, const HangTrigger& trigger);

// Returns the hosts of the verdict's suspects that a restart should avoid, most certain first; none if the program is
// at fault, or nothing is known. Storage and data readers count only if all suspects are on one node of several, and
// ranks of every other node have read or written the same since: otherwise the shared file system is at fault.
std::vector<std::string> suspect_hosts(std::span<const RankRecord> records, const HangVerdict& verdict);

// Returns the report: the headline, the suspects with what their records say, the edges of a cycle, and a table of all
// ranks; of more than 64 ranks, similar ones share a row. Every line ends in a newline.
std::string hang_report(std::span<const RankRecord> records, const HangTrigger& trigger, const HangVerdict& verdict);

}  // namespace tri
