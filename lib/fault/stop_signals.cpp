#include "lib/fault/stop_signals.h"

#include <atomic>
#include <csignal>

namespace tri {
namespace {

std::atomic<int> first_signal{0}, num_interrupts{0};
std::atomic<StopSignals::Clock::rep> first_time{0};  // 0: none yet
static_assert(std::atomic<int>::is_always_lock_free && std::atomic<StopSignals::Clock::rep>::is_always_lock_free);

// Makes only async-signal-safe calls.
void note_stop(int signal) {
  StopSignals::Clock::rep never = 0;
  first_time.compare_exchange_strong(never, StopSignals::Clock::now().time_since_epoch().count());
  int none = 0;
  first_signal.compare_exchange_strong(none, signal);
  if (signal != SIGINT || ++num_interrupts < 2) return;
  std::signal(SIGINT, SIG_DFL);
  std::raise(SIGINT);  // stays pending until the handler returns, then ends the process
}

}  // namespace

StopSignals::StopSignals() {
  struct sigaction action {};
  action.sa_handler = note_stop;
  action.sa_flags = SA_RESTART;  // system calls are restarted instead of failing with EINTR
  sigemptyset(&action.sa_mask);
  for (const int signal : {SIGTERM, SIGUSR1, SIGUSR2, SIGINT}) sigaction(signal, &action, nullptr);
}

int StopSignals::received() const { return first_signal; }

std::optional<StopSignals::Clock::time_point> StopSignals::first() const {
  const Clock::rep time = first_time;
  return time == 0 ? std::nullopt : std::optional(Clock::time_point(Clock::duration(time)));
}

}  // namespace tri
