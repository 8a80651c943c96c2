// fault.connect_seconds: how long ranks may take to connect groups, NCCL's first collectives and peers' memory. If a
// rank never arrives, the deadline ends the job, so that the others do not wait forever.
#pragma once

#include <chrono>
#include <string>
#include <thread>

#include "io/base/mutex.h"

namespace tri {

class Job;

class ConnectDeadline {
 public:
  // Starts a thread that watches the deadline until destroyed. `seconds` 0 or `job` null: no deadline.
  ConnectDeadline(double seconds, Job* job);
  ~ConnectDeadline();
  ConnectDeadline(const ConnectDeadline&) = delete;
  ConnectDeadline& operator=(const ConnectDeadline&) = delete;

  // Restarts the deadline for connecting `what` ("group tp of ranks 0, 1").
  void begin(std::string what);

 private:
  using Clock = std::chrono::steady_clock;
  void watch();

  const double seconds_;
  Job* const job_;
  Mutex mutex_;
  ConditionVariable changed_;
  std::string what_ TRI_GUARDED_BY(mutex_);  // empty: nothing is being connected
  Clock::time_point begun_ TRI_GUARDED_BY(mutex_);
  bool end_ TRI_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace tri
