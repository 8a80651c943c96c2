// Signals that ask a run to stop: SIGTERM, SIGUSR1, SIGUSR2. The handler only notes the first of them; more change
// nothing. Installed after MPI and NCCL have started, since they install handlers of their own. One at a time.
#pragma once

#include <array>
#include <chrono>
#include <csignal>
#include <optional>

namespace tri {

class StopSignals {
 public:
  using Clock = std::chrono::steady_clock;

  StopSignals();
  ~StopSignals();  // the handlers from before
  StopSignals(const StopSignals&) = delete;
  StopSignals& operator=(const StopSignals&) = delete;

  int received() const;                            // the first signal's number; 0: none yet
  std::optional<Clock::time_point> first() const;  // when it came

 private:
  std::array<struct sigaction, 3> before_{};
};

}  // namespace tri
