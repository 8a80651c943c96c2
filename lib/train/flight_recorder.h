// This rank's flight recorder (io/flight_recorder): created when a run or another use of a model begins, mapped for the
// marks of its device's streams, and removed when the rank ends in good order.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "io/flight_recorder/flight_recorder.h"
#include "kernels/core/device.h"
#include "lib/comm/job.h"
#include "lib/config/config.h"
#include "lib/engine/job_plan.h"
#include "lib/fault/process_deadline.h"
#include "lib/fault/watchdog.h"
#include "lib/parallel/mesh.h"

namespace tri {

class RunRecorder {
 public:
  // Collective. All ranks have a flight recorder, or none: where one can't be had, or fault.black_box is off.
  // `run_dir`: which the flight recorder belongs to; "": no run's.
  RunRecorder(const Config& config, const Mesh& mesh, const std::string& attempt, Job& job, const std::string& run_dir);
  RunRecorder(const RunRecorder&) = delete;
  RunRecorder& operator=(const RunRecorder&) = delete;

  // Collective: from here on, until unmap(), the streams of `device` write their marks. Or all give up their flight
  // recorders.
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

// For as long as it lives, which is less than the device and longer than its streams.
class MappedRecorder {
 public:
  MappedRecorder(RunRecorder& recorder, Device& device) : recorder_(recorder) { recorder_.map(device); }
  ~MappedRecorder() { recorder_.unmap(); }
  MappedRecorder(const MappedRecorder&) = delete;
  MappedRecorder& operator=(const MappedRecorder&) = delete;

 private:
  RunRecorder& recorder_;
};

// Flight recorder and watchdog of a job that uses a model: `trireme eval` and `trireme generate`. It belongs to no run
// and has no folder: what a hang's dump finds goes to stderr.
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
