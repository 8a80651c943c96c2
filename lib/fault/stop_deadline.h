// Limits the time in which a run must end after its first stop signal. A run that exceeds it is ended with status 75,
// whatever it waits for: MPI's start, a checkpoint that loads, a step with a lost peer, storage that hangs.
#pragma once

#include <thread>

#include "io/base/mutex.h"
#include "lib/comm/job/job.h"
#include "lib/fault/stop_signals.h"

namespace tri {

// Returns the seconds from the first stop signal of any rank to `at`, at least 0, identical on all ranks. `first`: when
// this rank received its first signal, if it has. `at`: a time of this rank. Collective over the job.
double oldest_stop_age(Job& job, std::optional<StopSignals::Clock::time_point> first,
                       StopSignals::Clock::time_point at);

// Before the first step the limit is the lesser of kStartTimeout and fault.grace_seconds, since there is nothing to
// save. From then on it is fault.grace_seconds. Safe for concurrent use.
class StopDeadline {
 public:
  using Clock = StopSignals::Clock;
  static constexpr double kStartTimeout = 10;  // seconds

  // Starts a thread that watches until destruction. `signals` must outlive the object.
  explicit StopDeadline(const StopSignals& signals);
  ~StopDeadline();
  StopDeadline(const StopDeadline&) = delete;
  StopDeadline& operator=(const StopDeadline&) = delete;

  // Sets the job whose ranks end with this one; null: this process ends alone. Call with null before the job is
  // destroyed.
  void set_job(Job* job);
  // `seconds`: fault.grace_seconds; 0: no limit once steps have begun.
  void set_grace(double seconds);
  // Call when the first step begins: from then on the limit is fault.grace_seconds.
  void begin_steps();
  // Call once all ranks know of the stop; `first` is when the first signal arrived on any of them. Until then a rank
  // counts from its own first signal.
  void count_from(Clock::time_point first);
  // Sets the figures for the log line on expiry: the completed steps, and those in the newest checkpoint.
  void set_progress(int64_t completed, int64_t saved);
  // Call when everything is saved: the run is no longer ended early.
  void cancel();

  // Whether work of `needed` seconds ends in time if the first signal arrived `age` seconds ago.
  static bool enough(double grace, double age, double needed) { return grace <= 0 || age + needed <= grace; }

 private:
  void watch();
  bool is_due() const TRI_REQUIRES(mutex_);
  [[noreturn]] void end_job() TRI_REQUIRES(mutex_);

  const StopSignals& signals_;
  Mutex mutex_;
  ConditionVariable ended_;
  Job* job_ TRI_GUARDED_BY(mutex_) = nullptr;
  double grace_ TRI_GUARDED_BY(mutex_) = 0;
  bool stepping_ TRI_GUARDED_BY(mutex_) = false, lifted_ TRI_GUARDED_BY(mutex_) = false;
  std::optional<Clock::time_point> first_ TRI_GUARDED_BY(mutex_);  // agreed on by the ranks
  int64_t completed_ TRI_GUARDED_BY(mutex_) = 0, saved_ TRI_GUARDED_BY(mutex_) = 0;
  bool end_ TRI_GUARDED_BY(mutex_) = false;  // of the thread
  std::thread thread_;
};

}  // namespace tri
