// fault.connect_seconds: how long ranks may take to meet in what connects them: groups, NCCL's first collectives,
// peers' memory. A rank that never comes ends the job instead of letting the others wait for ever.
#pragma once

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <string>
#include <thread>

namespace tri {

class Job;

class ConnectDeadline {
 public:
  // Watches from a thread of its own until it is destroyed. `seconds` 0 or `job` null: no deadline.
  ConnectDeadline(double seconds, Job* job);
  ~ConnectDeadline();
  ConnectDeadline(const ConnectDeadline&) = delete;
  ConnectDeadline& operator=(const ConnectDeadline&) = delete;

  // `what` is connected from here on ("group tp of ranks 0, 1"), and has the whole time.
  void begin(std::string what);

 private:
  using Clock = std::chrono::steady_clock;
  void watch();

  const double seconds_;
  Job* const job_;
  std::mutex mutex_;
  std::condition_variable changed_;
  // Under mutex_:
  std::string what_;  // empty: nothing yet
  Clock::time_point begun_;
  bool end_ = false;
  std::thread thread_;
};

}  // namespace tri
