// The time in which a run must end after its first stop signal. A run that has not ended by then is ended with status
// 75, whatever it waits for: MPI's start, a checkpoint that loads, a step whose peer is gone, storage that hangs.
#pragma once

#include <condition_variable>
#include <mutex>
#include <thread>

#include "lib/comm/job.h"
#include "lib/fault/stop_signals.h"

namespace tri {

// Before the first step the limit is kStartTimeout or fault.grace_seconds, whichever is less: the run has nothing to
// save. From then on it is fault.grace_seconds. Safe for concurrent use.
class StopDeadline {
 public:
  using Clock = StopSignals::Clock;
  static constexpr double kStartTimeout = 10;  // seconds

  // Watches from a thread of its own until it is destroyed. `signals` outlives it.
  explicit StopDeadline(const StopSignals& signals);
  ~StopDeadline();
  StopDeadline(const StopDeadline&) = delete;
  StopDeadline& operator=(const StopDeadline&) = delete;

  // The ranks that end with this one, from now on; null: this process ends alone. The job must not be destroyed before
  // this is called with null.
  void set_job(Job* job);
  // `seconds`: fault.grace_seconds; 0: there is no limit once steps have begun.
  void set_grace(double seconds);
  // The first step begins: from now on the limit is fault.grace_seconds.
  void begin_steps();
  // All ranks know of the stop; the first signal arrived at `first` on one of them. Until then a rank counts from the
  // first signal that it received itself.
  void count_from(Clock::time_point first);
  // For the log line when the time is up: the steps completed, and those that the newest checkpoint holds.
  void set_progress(int64_t completed, int64_t saved);
  // Everything that had to be saved is saved: from now on the run is not cut short.
  void cancel();

  // Whether work of `needed` seconds ends in time when the first signal arrived `age` seconds ago.
  static bool enough(double grace, double age, double needed) { return grace <= 0 || age + needed <= grace; }

 private:
  void watch();
  bool is_due() const;
  [[noreturn]] void end_job();

  const StopSignals& signals_;
  std::mutex mutex_;  // guards all below
  std::condition_variable ended_;
  Job* job_ = nullptr;
  double grace_ = 0;
  bool stepping_ = false, lifted_ = false;
  std::optional<Clock::time_point> first_;  // agreed on by the ranks
  int64_t completed_ = 0, saved_ = 0;
  bool end_ = false;  // of the thread
  std::thread thread_;
};

}  // namespace tri
