// Records what this rank's streams do in some steps, for `trireme timeline`: those that metrics.timeline names, and
// those that a file asks for while the run goes on. Outside of them it does nothing; within them every mark is an event
// on a stream, for which nobody waits until the last step is over.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "io/base/file_writer.h"
#include "kernels/core/span_recorder.h"
#include "lib/comm/job.h"
#include "lib/config/step_range.h"
#include "lib/engine/engine.h"
#include "lib/observe/timeline_segment.h"

namespace tri {

// run.dir/trace/record: "3" asks for the next three steps. It is removed when it is seen.
std::string timeline_request_path(const std::string& run_dir);
inline constexpr int kMostRecordedSteps = 100;  // of one request

class TimelineRecorder {
 public:
  // The engine has a job, and outlives the recorder.
  TimelineRecorder(Engine& engine, std::string attempt);
  ~TimelineRecorder();
  TimelineRecorder(const TimelineRecorder&) = delete;
  TimelineRecorder& operator=(const TimelineRecorder&) = delete;

  // World rank 0: steps that the file asks for; 0: none. A thread looks once a second: this call does not wait for
  // storage.
  int take_request();
  // The next `steps` steps are recorded, unless some are already; 0: nothing. The same on all ranks.
  void schedule(int64_t next_step, int steps);

  // Around each step, on all ranks; collective where a recording begins or is over.
  void begin_step(int64_t step);
  void end_step(int64_t step);
  // Within them: from `begin` (FlightRecorder::now()) to now the thread that trains was at `name`, a text that stays.
  void host_span(const char* name, int64_t begin);
  // Whether storage has taken, or refused, all that was recorded, within `timeout`.
  bool flush(std::chrono::milliseconds timeout) { return !writer_ || writer_->flush(timeout); }
  bool is_recording() const { return recorder_ != nullptr; }

 private:
  class RequestWatch;
  void begin(int64_t step);
  void finish(int64_t step);
  void write(TimelineSegment segment);

  Engine& engine_;
  const std::string attempt_;
  std::optional<StepRange> wanted_;         // ahead or under way
  int64_t first_step_ = 0;                  // of those under way
  std::unique_ptr<SpanRecorder> recorder_;  // they are under way
  ClockOffset clock_;
  std::vector<HostSpan> host_;
  int64_t step_ = 0, step_began_ = 0;
  std::unique_ptr<RequestWatch> requests_;  // world rank 0
  std::unique_ptr<FileWriter> writer_;      // null: nothing was recorded yet, or there is no thread
};

}  // namespace tri
