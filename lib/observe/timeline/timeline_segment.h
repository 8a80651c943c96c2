// One rank's recording of some steps for a timeline: one file per rank,
// run.dir/trace/steps_00000020_00000022/rank_00003.piece, which lib/observe/timeline/timeline merges with the others'.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "io/base/error.h"
#include "io/base/rank_grid.h"
#include "io/flight_recorder/image.h"
#include "kernels/core/span_recorder.h"
#include "lib/comm/job/clock_offset.h"
#include "lib/config/step_range.h"

namespace tri {

struct TimelineSpan {
  int64_t begin = 0, end = 0;  // like all times here: nanoseconds of CLOCK_MONOTONIC on the rank's host
  int32_t step = 0;
  uint16_t stream = 0;  // in TimelineSegment::streams
  uint16_t name = 0;    // in TimelineSegment::names
  int32_t microbatch = 0;
  uint16_t chunk = 0;
  SpanKind kind = SpanKind::kOperation;
  uint8_t unused = 0;
};

// This rank's part of one operation of a channel. `sent`: 0 if it was not recorded.
struct TimelineTransfer {
  int64_t joined = 0, sent = 0, completed = 0;
  uint32_t sequence = 0;
  int32_t step = 0;
  uint16_t channel = 0;        // in TimelineSegment::channels
  uint16_t join_stream = 0;    // on which it joined
  uint16_t arrive_stream = 0;  // ... and completed; usually the same
  ChannelOperation operation = ChannelOperation::kNone;
};

struct TimelineChannel {
  std::string name;
  ChannelKind kind = ChannelKind::kCollectives;
  RankSet members;
  int32_t index = 0;  // of this rank
};

struct AxisPlace {
  std::string axis;
  int32_t rank = 0;
  int32_t size = 0;  // 0: unknown (segments of earlier versions)
};

// Returns the position of `world_rank` in the grid of the job.
std::vector<AxisPlace> place_on_axes(const RankGrid& grid, int world_rank);

struct TimelineSegment {
  int32_t world_rank = 0, world_size = 1;
  std::vector<AxisPlace> place;  // position on the job's axes, slowest first
  std::string host, gpu, attempt;
  StepRange steps;
  ClockOffset clock;         // to rank 0's host
  int64_t device_error = 0;  // nanoseconds, between the device's clock and the host's
  int64_t lost_marks = 0;    // dropped because the buffer was full
  std::vector<std::string> streams, names;
  std::vector<TimelineChannel> channels;
  std::vector<TimelineSpan> spans;
  std::vector<TimelineTransfer> transfers;

  int rank_on(std::string_view axis) const;  // 0 on an axis that is not listed
  std::string place_text() const;            // "pp1 dp0 tp3"
  int64_t clock_error() const { return clock.error + device_error; }
};

// A span of the training thread, on the stream "host".
struct HostSpan {
  const char* name = "";
  int64_t step = 0, begin = 0, end = 0;
};

// Adds spans and transfers of a recording, whose first stream is the compute stream, with the channels of this
// process's flight recorder (without one, no transfers). Skips transfers that are only partly in the recording, and
// operations inside a transfer.
void add_recording(const SpanRecorder::Recording& recording, const std::vector<HostSpan>& host,
                   TimelineSegment& segment);

// Returns run.dir/trace/steps_00000020_00000022.
std::string timeline_folder(const std::string& run_dir, const StepRange& steps);
std::string segment_path(const std::string& folder, int world_rank);

// Writes the segment atomically, with a checksum. A segment has at most 5 MiB (kMostTimelineMarks).
Result<void> write_segment(const std::string& folder, const TimelineSegment& segment);
Result<TimelineSegment> read_segment(const std::string& path);

inline constexpr size_t kMostTimelineMarks = size_t{1} << 18;  // per rank and recording

}  // namespace tri
