#include "lib/comm/job/process_watch.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>

#include "io/base/proc.h"
#include "io/base/process_end.h"

namespace tri {
namespace {

// Returns whether a descriptor becomes readable within `seconds`; waits without limit if negative.
bool readable(pollfd* descriptors, nfds_t count, double seconds) {
  const int limit = seconds < 0 ? -1 : static_cast<int>(seconds * 1e3);
  int ready = 0;
  do ready = ::poll(descriptors, count, limit);
  while (ready < 0 && errno == EINTR);
  return ready > 0;
}

}  // namespace

ProcessId this_process() { return {::getpid(), pid_namespace()}; }

ProcessWatch::ProcessWatch(const ProcessId& process, OnEnd on_end) {
  if (process.pid_namespace != pid_namespace()) return;
  process_ = static_cast<int>(::syscall(SYS_pidfd_open, process.pid, 0));
  if (process_ < 0) return;
  over_ = ::eventfd(0, EFD_CLOEXEC);
  if (over_ < 0) return;
  const auto pid = static_cast<pid_t>(process.pid);
  thread_ = std::thread([this, pid, killed_before = out_of_memory_kills(), on_end = std::move(on_end)] {
    pollfd both[] = {{process_, POLLIN, 0}, {over_, POLLIN, 0}};
    readable(both, 2, -1);
    if (both[1].revents != 0) return;
    const std::optional<int> status = wait_status_of(process_, pid);
    const bool killed = status && WIFSIGNALED(*status) && WTERMSIG(*status) == SIGKILL;
    const bool out_of_memory =
        killed && (out_of_memory_kills() > killed_before || names_out_of_memory_kill(kernel_log(), pid));
    on_end(ending_text(status, out_of_memory), [this](double seconds) {
      pollfd over{over_, POLLIN, 0};
      return readable(&over, 1, seconds);
    });
  });
}

ProcessWatch::~ProcessWatch() {
  if (thread_.joinable()) {
    const uint64_t one = 1;
    while (::write(over_, &one, sizeof one) < 0 && errno == EINTR) {
    }
    thread_.join();
  }
  if (over_ >= 0) ::close(over_);
  if (process_ >= 0) ::close(process_);
}

}  // namespace tri
