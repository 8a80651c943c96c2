#include "lib/fault/stop_deadline.h"

#include <cstdlib>

#include "io/base/log.h"

namespace tri {
namespace {

constexpr std::chrono::milliseconds kLook{100};
// Rank 0 speaks and acts first; the others when it does not: an abort takes mpirun a second.
constexpr std::chrono::seconds kAfterRank0{3};
// To abort a job can hang as well.
constexpr std::chrono::seconds kAbort{10};

}  // namespace

StopDeadline::StopDeadline(double seconds, Job& job, const StopSignals& signals)
    : seconds_(seconds), job_(job), signals_(signals) {
  if (seconds_ > 0) thread_ = std::thread([this] { watch(); });
}

StopDeadline::~StopDeadline() {
  if (!thread_.joinable()) return;
  {
    const std::lock_guard lock(mutex_);
    end_ = true;
  }
  ended_.notify_all();
  thread_.join();
}

void StopDeadline::watch() {
  const auto limit =
      std::chrono::duration<double>(seconds_) + (job_.world_rank() == 0 ? std::chrono::seconds(0) : kAfterRank0);
  std::unique_lock lock(mutex_);
  while (!ended_.wait_for(lock, kLook, [this] { return end_; })) {
    if (done_) continue;
    Clock::time_point first{Clock::duration(first_)};
    if (first_ == 0) {
      const auto own = signals_.first();
      if (!own) continue;
      first = *own;
    }
    if (Clock::now() - first > limit) leave();
  }
}

void StopDeadline::leave() {
  log_error(
      "fault.grace_seconds: {:g} s after the stop signal the run has not ended: it leaves as it is, and the steps "
      "after {}, the newest checkpoint, up to {} ARE LOST",
      seconds_, saved_, completed_);
  std::thread([this] { job_.end_all(ExitCode::kDrained); }).detach();
  std::this_thread::sleep_for(kAbort);
  std::_Exit(static_cast<int>(ExitCode::kDrained));
}

}  // namespace tri
