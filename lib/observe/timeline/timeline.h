// The timeline of some steps: the activity of all ranks' streams, merged from their segments onto one clock, as a trace
// for Perfetto. Each rank is a process and each stream a track. A flow leads from every send to its receive, and from
// the last member that a gather or a reduce waited for to each other member.
//
// A wait for another rank is a separate slice, "waits for rank 5": on a transfer stream until the other rank reaches
// the same operation, on the compute stream as long as compute is blocked.
#pragma once

#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "io/base/error.h"
#include "lib/config/step_range.h"
#include "lib/observe/timeline/timeline_segment.h"

namespace tri {

// How long the compute stream of one rank waited because another rank was late.
struct WaitForRank {
  int waiter = 0, awaited = 0;  // world ranks
  std::string axis;             // "tp", "pp", "dp"
  int64_t count = 0;
  double seconds = 0;
};

struct TimelineSummary {
  StepRange steps;
  std::string path;
  int64_t bytes = 0;
  int num_ranks = 0, num_hosts = 0;
  int64_t num_slices = 0, num_flows = 0;
  int64_t num_unmatched = 0;  // transfers whose other ends are not in the segments
  int64_t num_early = 0;      // ... that arrived before they were sent, because clock errors exceed their estimates
  int64_t lost_marks = 0;     // dropped because a rank's buffer was full
  double clock_error = 0;     // seconds, maximum between two ranks
  std::vector<WaitForRank> waits;  // longest first
};

struct RankRange {
  int first = 0, last = std::numeric_limits<int>::max();  // inclusive
};

// Returns the recordings of the run, by their first steps.
std::vector<StepRange> list_timelines(const std::string& run_dir);
// Returns the segments of a recording by world rank, from the attempt that recorded last. Fails if there are none.
Result<std::vector<TimelineSegment>> read_timeline(const std::string& run_dir, const StepRange& recorded,
                                                   const RankRange& ranks);
// Writes those of their steps that are within `steps`.
Result<TimelineSummary> write_timeline(const std::vector<TimelineSegment>& segments, const StepRange& steps,
                                       const std::string& path);

std::string timeline_text(const TimelineSummary& summary, const std::vector<TimelineSegment>& segments);

}  // namespace tri
