// The contents of a timeline's tracks: spans, matching transfers of different ranks, which of them waited for which,
// and the flows between them.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "io/perfetto/trace_writer.h"
#include "lib/observe/timeline/timeline.h"

namespace tri {

// One rank's view of a transfer. All times use the clock of rank 0's host.
struct Rendezvous {
  int64_t joined = 0, completed = 0;
  int64_t ready = 0;  // from `joined` until then this rank waits for the source
  // The sender of a receive, the receiver of a send; for a gather or a reduce, the member that joined last, or with
  // copies the one whose part was sent last. -1: this rank itself was last, or the source is not in the segments.
  int32_t source_segment = -1, source_transfer = -1;
  bool matched = false;  // all members are in the segments
  bool early = false;    // completed before the source was ready, by these clocks
};

// Returns [segment][transfer], as in the segments.
std::vector<std::vector<Rendezvous>> find_rendezvous(const std::vector<TimelineSegment>& segments);

class TimelineSlices {
 public:
  // `segments` and `summary` outlive the object; it adds counts to the summary.
  TimelineSlices(const std::vector<TimelineSegment>& segments, const StepRange& steps, TimelineSummary& summary);

  // `tracks`: [segment][stream].
  void write(const std::vector<std::vector<uint64_t>>& tracks, PerfettoWriter& writer);

 private:
  struct Slice {
    int64_t begin = 0, end = 0;
    std::string name;
    int32_t segment = 0;
    uint16_t stream = 0;
    int32_t step = 0;
    const TimelineSpan* span = nullptr;  // the span described
    const TimelineTransfer* transfer = nullptr;
    int32_t awaited = -1;  // world rank, or -1
    std::vector<uint64_t> flows_out, flows_in;
  };
  struct Event {
    int64_t time = 0;
    uint32_t slice = 0;
    bool begins = true;
  };

  void add_span(int32_t segment, const TimelineSpan& span);
  void add_wait(int32_t segment, const TimelineSpan& span, Slice slice);
  void add_transfers(int32_t segment);
  void add_flows();
  std::vector<Event> events();
  void write_begin(const Slice& slice, uint64_t track, PerfettoWriter& writer) const;

  const std::vector<TimelineSegment>& segments_;
  const StepRange steps_;
  TimelineSummary& summary_;
  std::vector<std::vector<Rendezvous>> rendezvous_;  // [segment][transfer]
  std::vector<std::vector<int32_t>> by_completion_;  // [segment]: transfers, in the order of their completion
  std::vector<Slice> slices_;
  // [segment][transfer]: the slice in which it is sent, and in which it arrives; -1: not within the steps.
  std::vector<std::vector<int32_t>> sent_in_, arrived_in_;
  std::map<std::tuple<int, int, std::string>, WaitForRank> waits_;  // waiter, awaited, axis
};

}  // namespace tri
