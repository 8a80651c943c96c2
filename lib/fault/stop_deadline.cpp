#include "lib/fault/stop_deadline.h"

#include <algorithm>
#include <cstdlib>

#include "io/base/clock.h"
#include "io/base/log.h"

namespace tri {
namespace {

constexpr std::chrono::milliseconds kPollInterval{100};
// Rank 0 logs and ends the job first; the other ranks end it if rank 0 does not. mpirun needs a second to abort.
constexpr double kRank0First = 3;  // seconds
// MPI_Abort can hang as well; the process then exits without it.
constexpr std::chrono::seconds kAbortLimit{10};

}  // namespace

double oldest_stop_age(Job& job, std::optional<StopSignals::Clock::time_point> first,
                       StopSignals::Clock::time_point at) {
  const std::vector<double> ages = job.all_gather(first ? seconds_between(*first, at) : 0.0);
  return std::max(0.0, *std::ranges::max_element(ages));
}

StopDeadline::StopDeadline(const StopSignals& signals) : signals_(signals) {
  thread_ = std::thread([this] { watch(); });
}

StopDeadline::~StopDeadline() {
  {
    const MutexLock lock(mutex_);
    end_ = true;
  }
  ended_.notify_all();
  thread_.join();
}

void StopDeadline::set_job(Job* job) {
  const MutexLock lock(mutex_);
  job_ = job;
}

void StopDeadline::set_grace(double seconds) {
  const MutexLock lock(mutex_);
  grace_ = seconds;
}

void StopDeadline::begin_steps() {
  const MutexLock lock(mutex_);
  stepping_ = true;
}

void StopDeadline::count_from(Clock::time_point first) {
  const MutexLock lock(mutex_);
  first_ = first;
}

void StopDeadline::set_progress(int64_t completed, int64_t saved) {
  const MutexLock lock(mutex_);
  completed_ = completed;
  saved_ = saved;
}

void StopDeadline::cancel() {
  const MutexLock lock(mutex_);
  lifted_ = true;
}

bool StopDeadline::is_due() const {
  const std::optional<Clock::time_point> first = first_ ? first_ : signals_.first();
  if (lifted_ || !first || (stepping_ && grace_ <= 0)) return false;
  double limit = grace_;
  if (!stepping_) limit = grace_ > 0 ? std::min(grace_, kStartTimeout) : kStartTimeout;
  if (job_ != nullptr && job_->world_rank() != 0) limit += kRank0First;
  return seconds_since(*first) > limit;
}

void StopDeadline::watch() {
  const MutexLock lock(mutex_);
  while (!ended_.wait_for(mutex_, kPollInterval, [this]() TRI_REQUIRES(mutex_) { return end_; }))
    if (is_due()) end_job();  // under the lock, so that the job is not destroyed meanwhile
}

void StopDeadline::end_job() {
  if (stepping_)
    log_error(
        "fault.grace_seconds: the run has not ended {:g} s after the stop signal and is aborted now; the steps after "
        "{}, the newest checkpoint, up to {} ARE LOST",
        grace_, saved_, completed_);
  else
    log_error(
        "stopped by signal {} before the first step; the start-up did not end in time, so the process exits now. "
        "Nothing is lost: re-run the job",
        signals_.received());
  if (job_ != nullptr) {
    std::thread([job = job_] { job->end_all(ExitCode::kDrained); }).detach();
    std::this_thread::sleep_for(kAbortLimit);
  }
  std::_Exit(static_cast<int>(ExitCode::kDrained));
}

}  // namespace tri
