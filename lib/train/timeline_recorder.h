// Records what this rank's streams do in some steps, for `trireme timeline`: the steps of metrics.timeline, and those
// requested by a file during the run. Other steps pay nothing. In recorded steps every mark is an event on a stream;
// the host reads the events after the last step.
//
// Threads: call only from the training thread.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "io/base/file_writer.h"
#include "kernels/core/span_recorder.h"
#include "lib/comm/job/job.h"
#include "lib/config/step_range.h"
#include "lib/engine/engine.h"
#include "lib/observe/timeline/timeline_segment.h"

namespace tri {

// The file run.dir/trace/record: "3" requests the next three steps. It is removed when it is read.
std::string timeline_request_path(const std::string& run_dir);
inline constexpr int kMostRecordedSteps = 100;  // of one request

class TimelineRecorder {
 public:
  // The engine must have a job, and outlives the recorder. The run ends after `last_step`.
  TimelineRecorder(Engine& engine, std::string attempt, int64_t last_step);
  ~TimelineRecorder();
  TimelineRecorder(const TimelineRecorder&) = delete;
  TimelineRecorder& operator=(const TimelineRecorder&) = delete;

  // World rank 0: returns the steps that the file requests; 0: none. A thread checks once a second, so that this call
  // does not wait for storage.
  int take_request();
  // Records the next `steps` steps, unless a recording is planned or in progress; 0: has no effect. Call with the same
  // values on all ranks.
  void schedule(int64_t next_step, int steps);

  // Call around each step, on all ranks. Collective where a recording begins or ends.
  void begin_step(int64_t step);
  void end_step(int64_t step);
  // In recorded steps: notes that the training thread was at `name`, a static text, from `begin`
  // (FlightRecorder::now()) until now.
  void host_span(const char* name, int64_t begin);
  // Returns whether storage has accepted or refused everything recorded, within `timeout`.
  bool flush(std::chrono::milliseconds timeout) { return !writer_ || writer_->flush(timeout); }

 private:
  class RequestWatch;
  void begin(int64_t step);
  void finish(int64_t step);
  void write(TimelineSegment segment);

  Engine& engine_;
  const std::string attempt_;
  const int64_t last_step_;
  std::optional<StepRange> wanted_;         // planned or in progress
  int64_t first_step_ = 0;                  // of the recorded steps
  std::unique_ptr<SpanRecorder> recorder_;  // set during a recording
  ClockOffset clock_;
  std::vector<HostSpan> host_;
  int64_t step_ = 0, step_began_ = 0;
  std::unique_ptr<RequestWatch> requests_;  // world rank 0
  std::unique_ptr<FileWriter> writer_;      // null: nothing was recorded yet, or the thread could not be started
};

}  // namespace tri
