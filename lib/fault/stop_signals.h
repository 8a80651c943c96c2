// Signals that ask a run to stop: SIGTERM, SIGUSR1 and SIGUSR2 from schedulers, SIGINT from the keyboard. The handler
// only notes the first of them. More of them change nothing, but for a second SIGINT: whoever sends it does not want to
// wait, and the process ends by it at once.
// Installed after MPI and NCCL have started, since they install handlers of their own, and for the rest of the process:
// a scheduler may ask twice, and a run that has saved its checkpoint keeps its status while it takes itself down; the
// watchdogs see to it that it ends. One object at a time; a new one counts anew.
#pragma once

#include <chrono>
#include <optional>

namespace tri {

class StopSignals {
 public:
  using Clock = std::chrono::steady_clock;

  StopSignals();
  StopSignals(const StopSignals&) = delete;
  StopSignals& operator=(const StopSignals&) = delete;

  int received() const;                            // the first signal's number; 0: none yet
  std::optional<Clock::time_point> first() const;  // when it came; none yet: nothing
};

}  // namespace tri
