#include "lib/comm/job/node_reaper.h"

#include <poll.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <ctime>

#include "io/base/proc.h"

namespace tri {
namespace {

constexpr int64_t kKillInterval = 1000, kLeave = 30'000;  // milliseconds; a process blocked in the kernel may not die
                                                          // at once

int64_t milliseconds() {
  timespec now{};
  ::clock_gettime(CLOCK_MONOTONIC, &now);
  return int64_t{now.tv_sec} * 1000 + now.tv_nsec / 1'000'000;
}

void close_all_but(const pollfd* kept, nfds_t count) {
  unsigned next = 0;
  for (nfds_t i = 0; i < count; ++i) {
    const auto fd = static_cast<unsigned>(kept[i].fd);
    if (fd > next) ::close_range(next, fd - 1, 0);
    next = fd + 1;
  }
  ::close_range(next, ~0U, 0);
}

// Returns whether all processes have ended by `until`. Removes those that have from the list.
bool all_end(pollfd* processes, nfds_t count, int64_t until) {
  for (;;) {
    bool left = false;
    for (nfds_t i = 0; i < count; ++i) left = left || processes[i].fd >= 0;
    if (!left) return true;
    const int64_t timeout = until - milliseconds();
    if (timeout <= 0) return false;
    if (::poll(processes, count, static_cast<int>(timeout)) <= 0) continue;
    for (nfds_t i = 0; i < count; ++i)
      if (processes[i].fd >= 0 && processes[i].revents != 0) processes[i].fd = -1;
  }
}

// The body of the reaper process. Its parent had many threads that may have held any lock, so it makes only calls that
// are async-signal-safe.
[[noreturn]] void reap(pollfd* processes, nfds_t count, int64_t timeout) {
  ::setpgid(0, 0);  // the parent does this too; either may be first
  close_all_but(processes, count);
  int64_t until = milliseconds() + timeout;
  const int64_t leave = until + kLeave;
  while (!all_end(processes, count, until) && milliseconds() < leave) {
    for (nfds_t i = 0; i < count; ++i)
      if (processes[i].fd >= 0) ::syscall(SYS_pidfd_send_signal, processes[i].fd, SIGKILL, nullptr, 0);
    until = milliseconds() + kKillInterval;
  }
  ::_exit(0);
}

}  // namespace

NodeReaper::NodeReaper(const std::vector<ProcessId>& processes) {
  const int64_t here = pid_namespace();
  for (const ProcessId& process : processes) {
    if (process.pid_namespace != here) continue;
    const auto descriptor = static_cast<int>(::syscall(SYS_pidfd_open, process.pid, 0));
    if (descriptor >= 0) processes_.push_back(descriptor);
  }
  std::sort(processes_.begin(), processes_.end());
}

NodeReaper::~NodeReaper() {
  for (const int process : processes_) ::close(process);
}

pid_t NodeReaper::start(double seconds) const {
  std::vector<pollfd> processes;
  for (const int process : processes_) processes.push_back({process, POLLIN, 0});
  // The child inherits this thread's mask, so none of the job's handlers runs in it.
  sigset_t all, before;
  sigfillset(&all);
  if (pthread_sigmask(SIG_SETMASK, &all, &before) != 0) return -1;
  const pid_t child = ::_Fork();  // not fork(): its handlers in libraries may wait for locks
  if (child == 0) reap(processes.data(), processes.size(), static_cast<int64_t>(seconds * 1e3));
  if (child > 0) ::setpgid(child, child);  // on a busy node the child may not run for a second
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  return child;
}

}  // namespace tri
