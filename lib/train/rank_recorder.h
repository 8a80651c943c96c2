// This rank's flight recorder (io/flight_recorder): created when a run or another use of a model begins, mapped for the
// marks of its device's streams, and removed when the rank ends without an error.
//
// Threads: call only from the training thread.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "io/flight_recorder/flight_recorder.h"
#include "kernels/core/device.h"
#include "lib/comm/job/job.h"
#include "lib/config/config.h"
#include "lib/engine/job_plan.h"
#include "lib/fault/process_deadline.h"
#include "lib/fault/watchdog.h"
#include "lib/parallel/mesh.h"

namespace tri {

class RankRecorder {
 public:
  // Creates the recorder. All ranks have one, or none if it is not possible on some rank or fault.black_box is off.
  // `run_dir`: the run to which it belongs; "": none. Collective.
  RankRecorder(const Config& config, const Mesh& mesh, const std::string& attempt, Job& job,
               const std::string& run_dir);
  RankRecorder(const RankRecorder&) = delete;
  RankRecorder& operator=(const RankRecorder&) = delete;

  // Lets the streams of `device` write their marks until unmap(). If that fails on any rank, all ranks drop their
  // flight recorders. Collective.
  void map(Device& device);
  void unmap();
  FlightRecorder* flight() { return recorder_.get(); }  // null: none

 private:
  void give_up(const Error& why);

  Job& job_;
  RecorderIdentity identity_;
  std::unique_ptr<FlightRecorder> recorder_;
  std::unique_ptr<ProcessFlightRecorder> process_;
  Device* device_ = nullptr;
};

// Maps the recorder while it lives. It must outlive the device's streams, and the device must outlive it.
class MappedRecorder {
 public:
  MappedRecorder(RankRecorder& recorder, Device& device) : recorder_(recorder) { recorder_.map(device); }
  ~MappedRecorder() { recorder_.unmap(); }
  MappedRecorder(const MappedRecorder&) = delete;
  MappedRecorder& operator=(const MappedRecorder&) = delete;

 private:
  RankRecorder& recorder_;
};

// The flight recorder and watchdog of a job that uses a model: `trireme eval` and `trireme generate`. There is no run
// and no folder: the report of a hang goes to stderr.
class WatchedUse {
 public:
  // Takes over from `deadline`. Must outlive the streams of `device`, and `device` must outlive it. Collective.
  WatchedUse(const PlannedJob& planned, Job& job, Device& device, ProcessDeadline& deadline);
  ~WatchedUse();
  WatchedUse(const WatchedUse&) = delete;
  WatchedUse& operator=(const WatchedUse&) = delete;

 private:
  RankRecorder recorder_;
  const MappedRecorder mapped_;
  std::optional<Watchdog> watchdog_;
};

}  // namespace tri
