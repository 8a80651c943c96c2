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
  // all are gone. When the call returns it is in a group of its own, since a launcher may kill the group of this
  // process at any time; it holds none of the job's files. Returns its number; -1: it could not be made. Any thread,
  // in whatever state the others are.
  pid_t start(double seconds) const;

 private:
  std::vector<int> processes_;  // ascending
};

}  // namespace tri
