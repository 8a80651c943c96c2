// The timeline of some steps: what all ranks' streams did, put together from their segments on one clock, as a trace
// for Perfetto. A process a rank, a track a stream; a flow from every send to its receive, and from the last member
// that a gather or a reduce waited for to each of the others.
//
// Where a rank stands still for another, that wait is a slice of its own, "awaits rank 5": on the streams of transfers
// until the other has come to the same operation, on the compute stream for as long as compute is held up.
#pragma once

#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "io/base/error.h"
#include "lib/config/step_range.h"
#include "lib/observe/timeline_segment.h"

namespace tri {

// How long the compute stream of one rank stood still because another had not come so far.
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
  int64_t num_early = 0;      // ... that arrived before they were sent, by clocks that are wrong by more than they say
  int64_t lost_marks = 0;     // for which a rank had no room
  double clock_error = 0;     // seconds, at most, between two ranks
  std::vector<WaitForRank> waits;  // longest first
};

struct RankRange {
  int first = 0, last = std::numeric_limits<int>::max();  // both belong to it
};

// Recordings of the run, by their first steps.
std::vector<StepRange> list_timelines(const std::string& run_dir);
// The segments of a recording by world rank, of the attempt that recorded last. Error: there are none.
Result<std::vector<TimelineSegment>> read_timeline(const std::string& run_dir, const StepRange& recorded,
                                                   const RankRange& ranks);
// Those of their steps that are within `steps`.
Result<TimelineSummary> write_timeline(const std::vector<TimelineSegment>& segments, const StepRange& steps,
                                       const std::string& path);

std::string timeline_text(const TimelineSummary& summary, const std::vector<TimelineSegment>& segments);

}  // namespace tri
