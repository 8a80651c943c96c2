// Which ranks waited for which, for the picture of the mesh: in the steps recorded last, and in the newest hang dump.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "io/base/rank_grid.h"
#include "io/flight_recorder/record.h"
#include "lib/observe/timeline/timeline.h"

namespace tri {

struct RankWait {
  int waiter = 0, awaited = 0;  // world ranks
  std::string what;             // the axis or, in a dump, the operation: "all-gather 8812 on tp"
  double seconds = 0;           // per step, for which the waiter's compute waited; 0 in a dump
  bool operator==(const RankWait&) const = default;
};

struct RankWaits {
  enum class Source { kSteps, kDump };
  Source source = Source::kSteps;
  RankGrid grid = unnamed_grid(1, 1, 1);
  std::string title;            // "steps 20 to 22", "dump 20261122T155959"
  std::string headline;         // of a dump
  std::vector<int> suspects;    // of a dump: world ranks
  std::vector<RankWait> waits;  // longest first; for a dump by waiter
  int64_t num_waits = 0;        // total number, of which `waits` are the first
};

inline constexpr size_t kMostRankWaits = 20'000;  // to keep per source
inline constexpr size_t kMostAwaited = 4;         // maximum number of awaited ranks to show per rank of a dump

RankWaits waits_of_steps(const std::vector<TimelineSegment>& segments, const StepRange& steps);
// Does not set title, headline and suspects.
RankWaits waits_of_dump(std::span<const RankRecord> records);

// Reads both sources from the run's folder; skips recordings of more than 512 MiB and dumps of more than 4,096 ranks.
// Adds to `remarks` what can't be read or is too large.
std::vector<RankWaits> read_rank_waits(const std::string& run_dir, std::vector<std::string>& remarks);

}  // namespace tri
