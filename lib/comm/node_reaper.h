// Ends what a launcher cannot: ranks of this node that are stopped, or stuck where no code of theirs runs any more.
#pragma once

#include <sys/types.h>

#include <vector>

#include "lib/comm/process_watch.h"

namespace tri {

class NodeReaper {
 public:
  // Of these processes, by descriptors that it opens now: a number may belong to another process later. Those that
  // can't be had (another namespace, a kernel older than 5.3, gone) are left out.
  explicit NodeReaper(const std::vector<ProcessId>& processes);
  ~NodeReaper();
  NodeReaper(const NodeReaper&) = delete;
  NodeReaper& operator=(const NodeReaper&) = delete;

  // A process of its own gives the others `seconds` to end, kills those that are left, this one too, and leaves when
  // all are gone. It belongs to no group or session of the job and holds none of its files. The call returns when that
  // is so, since a launcher may kill this process' group at any time, or after 1 s. Returns its number; -1: it could
  // not be made. Any thread, in whatever state the others are.
  pid_t start(double seconds) const;

 private:
  std::vector<int> processes_;  // ascending
};

}  // namespace tri
