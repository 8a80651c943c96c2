#include "io/base/file_writer.h"

#include <sys/prctl.h>

#include <atomic>
#include <deque>
#include <exception>
#include <optional>
#include <system_error>
#include <thread>
#include <utility>

#include "io/base/mutex.h"

namespace tri {
namespace {

using Clock = std::chrono::steady_clock;

// An intermittent failure, as on a disk that is nearly full, is reported at most once in this time.
constexpr std::chrono::seconds kReportInterval{60};

std::atomic<int64_t> g_pending{0};
std::atomic<uint32_t> g_num_done{0};

Result<void> carry_out(const FileWriter::Task& task, const std::string& path) {
  try {
    return task();
  } catch (const std::exception& problem) {
    return file_error("{}: {}", path, problem.what());
  }
}

}  // namespace

struct FileWriter::State {
  explicit State(Options given) : options(std::move(given)) {}

  struct Posted {
    size_t bytes = 0;
    Task task;
  };
  const Options options;
  Mutex mutex;
  ConditionVariable changed;
  std::deque<Posted> tasks TRI_GUARDED_BY(mutex);
  size_t bytes TRI_GUARDED_BY(mutex) = 0;  // of unfinished tasks
  uint64_t num_posted TRI_GUARDED_BY(mutex) = 0, num_done TRI_GUARDED_BY(mutex) = 0;
  bool ends TRI_GUARDED_BY(mutex) = false;  // no more tasks will be posted
  bool left TRI_GUARDED_BY(mutex) = false;  // the owner is gone: nothing may be reported
  // Tasks that failed or were dropped since the last report of their number, and whether that was reported.
  int64_t num_lost TRI_GUARDED_BY(mutex) = 0;
  bool reported TRI_GUARDED_BY(mutex) = false;
  std::optional<Clock::time_point> last_report TRI_GUARDED_BY(mutex);

  // Counts a task that failed or was dropped for `reason`. Returns the message to report; "": none.
  std::string lose(const std::string& reason) TRI_REQUIRES(mutex) {
    ++num_lost;
    const auto now = Clock::now();
    if (reported || (last_report && now - *last_report < kReportInterval)) return "";
    reported = true;
    last_report = now;
    return reason + "; the run continues, but writes to this file are lost until they succeed again";
  }

  std::string recover() TRI_REQUIRES(mutex) {
    if (!std::exchange(reported, false)) return "";  // losses are counted until the next report
    const int64_t lost = std::exchange(num_lost, 0);
    return fmt::format("{}: writes succeed again; {} {} lost", options.path, lost,
                       lost == 1 ? "write was" : "writes were");
  }

  // Whether to call options.report, which must not be called with the mutex held.
  bool reports(const std::string& message) const TRI_REQUIRES(mutex) {
    return !message.empty() && !left && options.report;
  }
};

Result<std::unique_ptr<FileWriter>> FileWriter::start(Options options) {
  auto state = std::make_shared<State>(std::move(options));
  try {
    std::thread([state] { run(state); }).detach();  // detached because it may outlive this object, in a call that hangs
  } catch (const std::system_error& problem) {
    return file_error("{}: cannot start the thread that writes this file: {}", state->options.path, problem.what());
  }
  return std::unique_ptr<FileWriter>(new FileWriter(std::move(state)));
}

FileWriter::~FileWriter() {
  const bool done = flush(state_->options.close_timeout);
  const MutexLock lock(state_->mutex);
  state_->ends = true;
  state_->left = !done;
  state_->changed.notify_all();
}

bool FileWriter::post(size_t bytes, Task task) {
  MutexLock lock(state_->mutex);
  // A task that is larger than the queue is accepted if the queue is empty.
  if (state_->bytes > 0 && state_->bytes + bytes > state_->options.max_bytes) {
    const std::string message =
        state_->lose(fmt::format("{}: storage has not accepted the {} bytes that are queued for this file",
                                 state_->options.path, state_->bytes));
    const bool reports = state_->reports(message);
    lock.unlock();
    if (reports) state_->options.report(message);
    return false;
  }
  if (state_->options.required) ++g_pending;
  state_->bytes += bytes;
  ++state_->num_posted;
  state_->tasks.push_back({bytes, std::move(task)});
  state_->changed.notify_all();
  return true;
}

bool FileWriter::flush(std::chrono::milliseconds timeout) {
  const MutexLock lock(state_->mutex);
  const uint64_t last = state_->num_posted;
  if (timeout != kForever)
    return state_->changed.wait_for(state_->mutex, timeout,
                                    [&]() TRI_REQUIRES(state_->mutex) { return state_->num_done >= last; });
  while (state_->num_done < last) state_->changed.wait(state_->mutex);
  return true;
}

void FileWriter::run(const std::shared_ptr<State>& state) {
  ::prctl(PR_SET_NAME, kFileWriterThread);
  MutexLock lock(state->mutex);
  for (;;) {
    while (!state->ends && state->tasks.empty()) state->changed.wait(state->mutex);
    if (state->tasks.empty()) return;
    State::Posted posted = std::move(state->tasks.front());
    state->tasks.pop_front();
    lock.unlock();
    const Result<void> written = carry_out(posted.task, state->options.path);
    posted.task = nullptr;
    if (state->options.required) {
      ++g_num_done;
      --g_pending;
      g_pending.notify_all();
    }
    lock.lock();
    state->bytes -= posted.bytes;
    const std::string message = written ? state->recover() : state->lose(written.error().message);
    if (state->reports(message)) {
      lock.unlock();
      state->options.report(message);
      lock.lock();
    }
    ++state->num_done;
    state->changed.notify_all();
  }
}

FileWriterActivity file_writer_activity() { return {.pending = g_pending > 0, .num_done = g_num_done.load()}; }

void flush_required_files() {
  for (int64_t pending = g_pending; pending > 0; pending = g_pending) g_pending.wait(pending);
}

}  // namespace tri
