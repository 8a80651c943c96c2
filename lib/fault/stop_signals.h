// Signals that ask a run to stop: SIGTERM, SIGUSR1 and SIGUSR2 from schedulers, SIGINT from the keyboard. The handler
// only notes the first of them. More of them change nothing, but for a second SIGINT: whoever sends it does not want to
// wait, and the process ends by it at once.
// Installed after MPI and NCCL have started, since they install handlers of their own. One object at a time.
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
  ~StopSignals();  // puts the handlers from before back
  StopSignals(const StopSignals&) = delete;
  StopSignals& operator=(const StopSignals&) = delete;

  int received() const;                            // the first signal's number; 0: none yet
  std::optional<Clock::time_point> first() const;  // when it came; none yet: nothing

 private:
  static constexpr std::array kSignals = {SIGTERM, SIGUSR1, SIGUSR2, SIGINT};
  std::array<struct sigaction, kSignals.size()> before_{};
};

}  // namespace tri
