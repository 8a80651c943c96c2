// One job at a time in a run folder. DIR/run.lock is locked by flock and says who holds it: host, process, attempt,
// start. The kernel gives the lock up when its holder dies, so what a dead one left is taken over, with a log line.
// On file systems without flock the text alone decides: a holder that is dead on this host is replaced, others refuse.
#pragma once

#include <string>

#include "io/base/file.h"

namespace tri {

class RunLock {
 public:
  enum class How { kFlock, kTextAlone };  // kFlock falls back by itself where the file system has none

  // Error naming the holder when there is one, and what to do.
  static Result<RunLock> take(const std::string& dir, const std::string& attempt, How how = How::kFlock);
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
