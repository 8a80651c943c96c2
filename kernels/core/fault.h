// The first error on a device.
#pragma once

#include <atomic>
#include <exception>

#include "io/base/mutex.h"

namespace tri {

// Keeps the first exception that a task threw. Safe for concurrent use.
class Fault {
 public:
  void raise(std::exception_ptr cause) {
    const MutexLock lock(mutex_);
    if (!cause_) cause_ = std::move(cause);
    raised_ = true;
  }
  bool raised() const { return raised_; }
  void rethrow() const {
    if (!raised_) return;
    const MutexLock lock(mutex_);
    std::rethrow_exception(cause_);
  }

 private:
  mutable Mutex mutex_;
  std::exception_ptr cause_ TRI_GUARDED_BY(mutex_);
  std::atomic<bool> raised_{false};
};

}  // namespace tri
