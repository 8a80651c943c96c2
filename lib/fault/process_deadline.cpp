#include "lib/fault/process_deadline.h"

#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>

#include "io/base/console.h"
#include "io/base/host.h"
#include "io/base/stderr.h"

namespace tri {
namespace {

using Clock = std::chrono::steady_clock;

double or_default(const Result<double>& seconds) { return seconds ? seconds.value() : kStartSeconds; }

}  // namespace

Result<double> start_seconds() {
  const char* const text = std::getenv(kStartSecondsVariable);
  if (text == nullptr) return kStartSeconds;
  char* end = nullptr;
  const double seconds = std::strtod(text, &end);
  if (end == text || *end != '\0' || !std::isfinite(seconds) || seconds < 0)
    return usage_error("{}='{}': expected a number of seconds >= 0 (0 = no deadline)", kStartSecondsVariable, text);
  return seconds;
}

ProcessDeadline::ProcessDeadline(const std::string& what, End end, std::chrono::milliseconds tick)
    : seconds_(or_default(start_seconds())), what_(what), end_(std::move(end)) {
  off_ = seconds_ == 0;
  thread_ = std::thread([this, tick] { count(tick); });
}

ProcessDeadline::~ProcessDeadline() {
  {
    const MutexLock lock(mutex_);
    over_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void ProcessDeadline::begin(const std::string& what, End end) {
  const MutexLock lock(mutex_);
  what_ = what;
  end_ = std::move(end);
  awake_ = 0;
}

void ProcessDeadline::set(const FaultConfig& fault) {
  const MutexLock lock(mutex_);
  seconds_ = fault.setup_seconds;
  field_ = "fault.setup_seconds";
  off_ = fault.watchdog == Switch::kOff;
}

void ProcessDeadline::hand_over() {
  const MutexLock lock(mutex_);
  what_.clear();
}

// Excludes time in which the process is suspended, for example by a debugger: a long tick counts as at most two ticks.
void ProcessDeadline::count(std::chrono::milliseconds tick) {
  const double longest = 2 * std::chrono::duration<double>(tick).count();
  MutexLock lock(mutex_);
  const auto over = [this]() TRI_REQUIRES(mutex_) { return over_; };
  for (auto last = Clock::now(); !changed_.wait_for(mutex_, tick, over);) {
    const auto now = Clock::now();
    awake_ += std::min(std::chrono::duration<double>(now - last).count(), longest);
    last = now;
    if (off_ || what_.empty() || awake_ < seconds_) continue;
    const std::string text = fmt::format("{}: {} has not finished after {:.0f} s", field_, what_, awake_);
    const End end = end_;
    lock.unlock();
    end(text);
    lock.lock();
    what_.clear();
  }
}

ProcessDeadline::End leave_alone(ExitCode code) {
  return [code](const std::string& text) {
    constexpr std::chrono::seconds kPrintTimeout{2};
    print_err("process {} on {}: error: {}\n", ::getpid(), host_name(), text);
    flush_stderr(kPrintTimeout);
    std::_Exit(static_cast<int>(code));
  };
}

int run_watched_job(int* argc, char*** argv, const std::function<int(Job&, ProcessDeadline&)>& body) {
  // MPI has not started, so each rank reports the error itself.
  if (const auto seconds = start_seconds(); !seconds) {
    print_err("error: {}\n", seconds.error().message);
    return static_cast<int>(ExitCode::kUsage);
  }
  ProcessDeadline deadline("the start of MPI", leave_alone(ExitCode::kWatchdog));
  return run_job(argc, argv, [&](Job& job) {
    deadline.begin("reading the config and planning the run", [&job](const std::string& text) {
      job.fail(text + "; the storage of the config, the data or the run may not respond", ExitCode::kWatchdog);
    });
    const int status = body(job, deadline);
    // The job's exit status is decided; only a status of 0 would hide the hang.
    deadline.begin("the end of MPI", leave_alone(status == 0 ? ExitCode::kWatchdog : static_cast<ExitCode>(status)));
    return status;
  });
}

}  // namespace tri
