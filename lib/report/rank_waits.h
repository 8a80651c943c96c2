// Which ranks waited for which, for the picture of the mesh: in the steps recorded last, and in the newest dump of a
// hang.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "io/flight_recorder/record.h"
#include "lib/observe/timeline.h"

namespace tri {

struct RankWait {
  int waiter = 0, awaited = 0;  // world ranks
  std::string what;             // the axis; in a dump the operation: "all-gather 8812 on tp"
  double seconds = 0;           // a step, for which the waiter's compute waited; 0 in a dump
  bool operator==(const RankWait&) const = default;
};

struct RankWaits {
  enum class Source { kSteps, kDump };
  Source source = Source::kSteps;
  int pp = 1, groups = 1, tp = 1;  // groups: tp groups of a stage, one for each place on all other axes
  std::string title;               // "steps 20 to 22", "dump 20261122T155959"
  std::string headline;            // of a dump
  std::vector<int> suspects;       // of a dump: world ranks
  std::vector<RankWait> waits;     // the longest first; of a dump by waiter
  int64_t num_waits = 0;           // of which those are
};

inline constexpr size_t kMostRankWaits = 20'000;  // that are kept, of one source
inline constexpr size_t kMostAwaited = 4;         // ranks, that one rank of a dump is shown to wait for

RankWaits waits_of_steps(const std::vector<TimelineSegment>& segments, const StepRange& steps);
// Without title, headline and suspects.
RankWaits waits_of_dump(std::span<const RankRecord> records);

// What the run's folder has of both; of more than 512 MiB of recordings, or 4,096 ranks of a dump, nothing. What can't
// be read or is too much is reported in `remarks`.
std::vector<RankWaits> read_rank_waits(const std::string& run_dir, std::vector<std::string>& remarks);

}  // namespace tri
