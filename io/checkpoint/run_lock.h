// One job at a time in a run folder. DIR/run.lock is locked by flock and says who holds it: host, process, attempt,
// start. The kernel gives the lock up when its holder dies, so what a dead one left is taken over, with a log line.
// On file systems without flock the text alone decides: a holder that is dead on this host is replaced, others refuse.
// A batch job that was started again is the heir of its earlier starts, whose processes may live on where their node
// was lost to the scheduler: it replaces the file, and they find out before they publish anything.
#pragma once

#include <string>

#include "io/base/file.h"

namespace tri {

struct BatchStart {
  std::string job;  // the scheduler's name of the job, a word; "": not in one
  int restart = 0;  // how often it was started before
};

class RunLock {
 public:
  enum class How { kFlock, kTextAlone };  // kFlock falls back by itself where the file system has none

  // Error naming the holder when there is one, and what to do.
  static Result<RunLock> take(const std::string& dir, const std::string& attempt, const BatchStart& start = {},
                              How how = How::kFlock);
  RunLock(RunLock&&) noexcept = default;
  ~RunLock();  // gives it up

  // Error when the file is no longer ours: removed, or taken by another attempt. To be asked before publishing.
  Result<void> check() const;

 private:
  RunLock() = default;
  std::string path_, text_;
  Descriptor file_;
};

}  // namespace tri
