// Black box and watchdog of a job that uses a model: `trireme eval` and `trireme generate`. It belongs to no run and
// has no folder: what a hang's dump finds stands on stderr.
#pragma once

#include <optional>

#include "lib/engine/job_plan.h"
#include "lib/fault/process_deadline.h"
#include "lib/fault/watchdog.h"
#include "lib/train/run_recorder.h"

namespace tri {

class WatchedUse {
 public:
  // Collective. Lives less than `device` and longer than its streams. Takes over from `deadline`.
  WatchedUse(const PlannedJob& planned, Job& job, Device& device, ProcessDeadline& deadline);
  ~WatchedUse();
  WatchedUse(const WatchedUse&) = delete;
  WatchedUse& operator=(const WatchedUse&) = delete;

 private:
  RunRecorder recorder_;
  const MappedRecorder mapped_;
  std::optional<Watchdog> watchdog_;
};

}  // namespace tri
