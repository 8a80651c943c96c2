// Ends processes that a launcher cannot: ranks of this node that are stopped, or stuck in the kernel.
#pragma once

#include <sys/types.h>

#include <vector>

#include "lib/comm/job/process_watch.h"

namespace tri {

class NodeReaper {
 public:
  // Opens descriptors of these processes now, since a process id may be reused later. Skips those that cannot be opened
  // (another namespace, a kernel older than 5.3, gone).
  explicit NodeReaper(const std::vector<ProcessId>& processes);
  ~NodeReaper();
  NodeReaper(const NodeReaper&) = delete;
  NodeReaper& operator=(const NodeReaper&) = delete;

  // Forks a process that gives the others `seconds` to end, kills those that remain, this one included, and exits when
  // all are gone. When the call returns, that process is in its own process group, since a launcher may kill this one's
  // group at any time, and holds none of the job's files. Returns its id, or -1 if it could not be created. Any thread
  // may call it, whatever state the others are in.
  pid_t start(double seconds) const;

 private:
  std::vector<int> processes_;  // ascending
};

}  // namespace tri
