// fault.grace_seconds: from the first stop signal to the end of the run. A run that has not ended by then is ended with
// status 75 as it is, whatever it waits for: a step whose peer is gone, storage that does not answer.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <thread>

#include "lib/comm/job.h"
#include "lib/fault/stop_signals.h"

namespace tri {

class StopDeadline {
 public:
  using Clock = StopSignals::Clock;

  // Watches from a thread of its own until it is destroyed. `seconds` 0: no deadline. `job` and `signals` outlive it.
  StopDeadline(double seconds, Job& job, const StopSignals& signals);
  ~StopDeadline();
  StopDeadline(const StopDeadline&) = delete;
  StopDeadline& operator=(const StopDeadline&) = delete;

  // All ranks know of the stop; the first signal came at `first`, to whichever of them. Until then a rank counts from
  // the first signal that came to itself.
  void count_from(Clock::time_point first) { first_ = first.time_since_epoch().count(); }
  // What the log says when the time is up: the steps done, and those that the newest checkpoint holds.
  void set_progress(int64_t completed, int64_t saved) { completed_ = completed, saved_ = saved; }
  // What had to be saved is saved: from here on the run is not cut short.
  void lift() { lifted_ = true; }

  // Whether what takes `needed` seconds ends in time, when the first signal came `age` seconds ago.
  static bool enough(double grace, double age, double needed) { return grace <= 0 || age + needed <= grace; }

 private:
  void watch();
  [[noreturn]] void end_job();

  const double seconds_;
  Job& job_;
  const StopSignals& signals_;
  std::atomic<Clock::rep> first_{0};  // 0: the ranks have not agreed on it
  std::atomic<int64_t> completed_{0}, saved_{0};
  std::atomic<bool> lifted_{false};
  std::mutex mutex_;
  std::condition_variable ended_;
  bool end_ = false;  // of the thread; under mutex_
  std::thread thread_;
};

}  // namespace tri
