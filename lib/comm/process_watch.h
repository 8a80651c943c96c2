// Notices that another process of this machine is gone.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <thread>

namespace tri {

// A process, by what another one of the same machine needs to find it.
struct ProcessId {
  int64_t pid = 0;
  int64_t pid_namespace = 0;  // in which it has this number
};
ProcessId this_process();

class ProcessWatch {
 public:
  // A thread waits for the end of `process`, without polling, and calls `on_end` then: with what waits until either the
  // seconds have passed or the watch is over, and says whether it is over. Where the process cannot be watched (it is
  // in another namespace, the kernel is older than 5.3), nothing is called.
  using WaitFor = std::function<bool(double seconds)>;
  ProcessWatch(const ProcessId& process, std::function<void(const WaitFor&)> on_end);
  ~ProcessWatch();  // the watch is over
  ProcessWatch(const ProcessWatch&) = delete;
  ProcessWatch& operator=(const ProcessWatch&) = delete;

 private:
  int process_ = -1, over_ = -1;  // descriptors: readable at the end of the process, when the watch is over
  std::thread thread_;
};

}  // namespace tri
