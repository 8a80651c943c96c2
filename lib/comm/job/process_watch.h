// Detects that another process of this machine has ended.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>

namespace tri {

// Identifies a process to other processes of the same machine.
struct ProcessId {
  int64_t pid = 0;
  int64_t pid_namespace = 0;  // in which it has this number
};
ProcessId this_process();

class ProcessWatch {
 public:
  // Starts a thread that waits for the end of `process`, without polling, and then calls `on_end`. `ending` says how it
  // ended (ending_text()); `wait_for` waits until the given seconds have passed or the watch is over, and returns
  // whether it is over. If the process cannot be watched (it is in another namespace, or the kernel is older than
  // 5.3), nothing is called.
  using WaitFor = std::function<bool(double seconds)>;
  using OnEnd = std::function<void(const std::string& ending, const WaitFor& wait_for)>;
  ProcessWatch(const ProcessId& process, OnEnd on_end);
  ~ProcessWatch();  // the watch is over
  ProcessWatch(const ProcessWatch&) = delete;
  ProcessWatch& operator=(const ProcessWatch&) = delete;

 private:
  int process_ = -1, over_ = -1;  // descriptors: readable at the end of the process, when the watch is over
  std::thread thread_;
};

}  // namespace tri
