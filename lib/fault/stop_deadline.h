// fault.grace_seconds: from the first stop signal to the end of the run. A run that has not ended by then leaves with
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

  // Watches from a thread of its own until the end of its life. 0 seconds: without limit.
  StopDeadline(double seconds, Job& job, const StopSignals& signals);
  ~StopDeadline();
  StopDeadline(const StopDeadline&) = delete;
  StopDeadline& operator=(const StopDeadline&) = delete;

  // All ranks know of the stop; the first signal came at `first`, to whichever of them.
  void agreed(Clock::time_point first) { first_ = first.time_since_epoch().count(); }
  // For the last words: the steps done and those that a checkpoint holds.
  void at(int64_t completed, int64_t saved) { completed_ = completed, saved_ = saved; }
  // What had to be saved is saved: from here on nothing is cut short.
  void done() { done_ = true; }

  // Whether what takes `needed` seconds is over in time, when the first signal came `age` seconds ago.
  static bool enough(double grace, double age, double needed) { return grace <= 0 || age + needed <= grace; }

 private:
  void watch();
  [[noreturn]] void leave();

  const double seconds_;
  Job& job_;
  const StopSignals& signals_;
  std::atomic<Clock::rep> first_{0};  // 0: not agreed
  std::atomic<int64_t> completed_{0}, saved_{0};
  std::atomic<bool> done_{false};
  std::mutex mutex_;
  std::condition_variable ended_;
  bool end_ = false;
  std::thread thread_;
};

}  // namespace tri
