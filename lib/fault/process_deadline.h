// Deadlines of one process for the phases without a watchdog: MPI's start, config and plan, before the rank has a
// flight recorder, and MPI's end. A rank that exceeds the deadline reports that and exits; the launcher, or its MPI,
// ends the others.
#pragma once

#include <chrono>
#include <functional>
#include <string>
#include <thread>

#include "io/base/error.h"
#include "io/base/mutex.h"
#include "lib/comm/job/job.h"
#include "lib/config/config.h"

namespace tri {

// Environment variable: the deadline in seconds until the config is known; 0: none. `trireme supervise`, which knows
// the config, sets it if fault.setup_seconds is less than the default.
inline constexpr const char* kStartSecondsVariable = "TRIREME_START_SECONDS";
inline constexpr double kStartSeconds = 300;

// Returns the value of the variable, or kStartSeconds. Fails with kUsage if the value is not a number >= 0.
Result<double> start_seconds();

// Counts the time in which this process is awake, from construction on, with a default deadline until the config is
// known. Called by the constructing thread and then by the one that runs the job's body, not concurrently.
class ProcessDeadline {
 public:
  // Prints `text` and ends the process; must not return.
  using End = std::function<void(const std::string& text)>;

  // `what`: the current phase, such as "the start of MPI". `tick`: the interval at which the clock is checked.
  ProcessDeadline(const std::string& what, End end, std::chrono::milliseconds tick = std::chrono::milliseconds(500));
  ~ProcessDeadline();
  ProcessDeadline(const ProcessDeadline&) = delete;
  ProcessDeadline& operator=(const ProcessDeadline&) = delete;

  // Begins the next phase, whose time counts from zero.
  void begin(const std::string& what, End end);
  // Uses the deadline of the config; fault.watchdog: off disables the deadlines.
  void set(const FaultConfig& fault);
  // Stops counting until the next begin(), because a watchdog takes over.
  void hand_over();

 private:
  void count(std::chrono::milliseconds tick);

  Mutex mutex_;
  ConditionVariable changed_;
  double seconds_ TRI_GUARDED_BY(mutex_);                             // the deadline; 0: none
  const char* field_ TRI_GUARDED_BY(mutex_) = kStartSecondsVariable;  // the field that the deadline comes from
  double awake_ TRI_GUARDED_BY(mutex_) = 0;                           // in the current phase
  std::string what_ TRI_GUARDED_BY(mutex_);                           // the current phase; "": not counting
  End end_ TRI_GUARDED_BY(mutex_);
  bool off_ TRI_GUARDED_BY(mutex_) = false, over_ TRI_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

// Returns a function that prints the text on stderr and exits with `code`, without help from other threads.
ProcessDeadline::End leave_alone(ExitCode code);

// Runs run_job (lib/comm/job/job.h) under a deadline; `body` hands over to its watchdog. Returns the exit status: 2,
// without starting MPI, if start_seconds() fails.
int run_watched_job(int* argc, char*** argv, const std::function<int(Job&, ProcessDeadline&)>& body);

}  // namespace tri
