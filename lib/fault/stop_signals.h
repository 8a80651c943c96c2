// Signals that request a run to stop: SIGTERM, SIGUSR1 and SIGUSR2 from schedulers, SIGINT from the keyboard. The
// handler records the first of them. Further signals have no effect, except a second SIGINT, which ends the process at
// once.
//
// `trireme train` and `trireme supervise` install the handlers before main() starts, since a signal may arrive while
// MPI starts or a checkpoint loads. The handlers stay for the rest of the process: a scheduler may signal twice, and a
// run that has saved its checkpoint keeps its exit status while it shuts down; deadlines ensure that it ends.
#pragma once

#include <chrono>
#include <optional>

namespace tri {

// The signals that the handlers of this process have recorded since they were first installed. Safe for concurrent use.
class StopSignals {
 public:
  using Clock = std::chrono::steady_clock;

  // Installs the handlers, also if a library has replaced them. Keeps what was recorded before.
  StopSignals();
  StopSignals(const StopSignals&) = delete;
  StopSignals& operator=(const StopSignals&) = delete;

  int received() const;                            // number of the first signal; 0: none yet
  std::optional<Clock::time_point> first() const;  // when it arrived; none yet: nullopt
};

}  // namespace tri
