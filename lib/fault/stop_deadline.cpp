#include "lib/fault/stop_deadline.h"

#include <cstdlib>

#include "io/base/log.h"

namespace tri {
namespace {

constexpr std::chrono::milliseconds kPollInterval{100};
// Rank 0 logs and ends the job first; the others do when it does not: to abort takes mpirun a second.
constexpr std::chrono::seconds kRank0First{3};
// To abort a job can hang as well: then the process ends by itself.
constexpr std::chrono::seconds kAbortLimit{10};

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
      std::chrono::duration<double>(seconds_) + (job_.world_rank() == 0 ? std::chrono::seconds(0) : kRank0First);
  std::unique_lock lock(mutex_);
  while (!ended_.wait_for(lock, kPollInterval, [this] { return end_; })) {
    if (lifted_) continue;
    Clock::time_point first{Clock::duration(first_)};
    if (first_ == 0) {
      const auto here = signals_.first();
      if (!here) continue;
      first = *here;
    }
    if (Clock::now() - first > limit) end_job();
  }
}

void StopDeadline::end_job() {
  log_error(
      "fault.grace_seconds: {:g} s after the stop signal the run has not ended: it is ended as it is, and the steps "
      "after {}, the newest checkpoint, up to {} ARE LOST",
      seconds_, saved_.load(), completed_.load());
  std::thread([this] { job_.end_all(ExitCode::kDrained); }).detach();
  std::this_thread::sleep_for(kAbortLimit);
  std::_Exit(static_cast<int>(ExitCode::kDrained));
}

}  // namespace tri
