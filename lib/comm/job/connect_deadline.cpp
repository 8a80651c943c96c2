#include "lib/comm/job/connect_deadline.h"

#include "lib/comm/job/job.h"

namespace tri {

ConnectDeadline::ConnectDeadline(double seconds, Job* job) : seconds_(seconds), job_(job) {
  if (seconds_ > 0 && job_ != nullptr) thread_ = std::thread([this] { watch(); });
}

ConnectDeadline::~ConnectDeadline() {
  if (!thread_.joinable()) return;
  {
    const MutexLock lock(mutex_);
    end_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void ConnectDeadline::begin(std::string what) {
  {
    const MutexLock lock(mutex_);
    what_ = std::move(what);
    begun_ = Clock::now();
  }
  changed_.notify_all();
}

void ConnectDeadline::watch() {
  const MutexLock lock(mutex_);
  while (!end_ && what_.empty()) changed_.wait(mutex_);
  while (!end_) {
    const auto end = begun_ + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds_));
    if (Clock::now() >= end)
      job_->fail(fmt::format("{}: not connected after {:g} s (fault.connect_seconds): a rank has not arrived or cannot "
                             "be reached; raise the limit if ranks start that much later than others",
                             what_, seconds_),
                 ExitCode::kComm);
    changed_.wait_until(mutex_, end);
  }
}

}  // namespace tri
