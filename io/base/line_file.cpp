#include "io/base/line_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <condition_variable>
#include <cstring>
#include <mutex>
#include <system_error>
#include <thread>
#include <utility>

#include "io/base/file.h"

namespace tri {
namespace {

std::atomic<int64_t> g_pending_bytes{0};
std::atomic<uint32_t> g_num_written{0};

// Errno; 0: all is written.
int write_all(int fd, const std::string& text) {
  for (size_t at = 0; at < text.size();) {
    const ssize_t written = ::write(fd, text.data() + at, text.size() - at);
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return errno;
    at += static_cast<size_t>(written);
  }
  return 0;
}

}  // namespace

struct LineFile::State {
  explicit State(int fd) : file(fd) {}

  const Descriptor file;
  std::function<void(const std::string&)> on_problem;
  std::mutex mutex;
  std::condition_variable changed;
  std::string waiting;  // lines that nobody has begun to write
  bool writes = false;  // the thread has others
  bool over = false;    // no more lines will come
  bool left = false;    // ... and who may be told of a problem is gone
  bool done() const { return waiting.empty() && !writes; }
};

LineFile::LineFile(std::shared_ptr<State> state, std::chrono::milliseconds patience)
    : state_(std::move(state)), patience_(patience) {}

Result<std::unique_ptr<LineFile>> LineFile::open(const std::string& path,
                                                 std::function<void(const std::string&)> on_problem,
                                                 std::chrono::milliseconds patience) {
  auto state = std::make_shared<State>(::open(path.c_str(), O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0666));
  if (state->file.get() < 0) return system_error(errno, "{}", path);
  state->on_problem = std::move(on_problem);
  try {
    std::thread([state] { write_lines(state); }).detach();  // it may outlive this object, in a call that hangs
  } catch (const std::system_error& problem) {
    return file_error("{}: no thread to write it: {}", path, problem.what());
  }
  return std::unique_ptr<LineFile>(new LineFile(std::move(state), patience));
}

LineFile::~LineFile() {
  const bool written = flush(patience_);
  const std::lock_guard lock(state_->mutex);
  state_->over = true;
  state_->left = !written;
  state_->changed.notify_all();
}

void LineFile::append(std::string text) {
  std::unique_lock lock(state_->mutex);
  state_->changed.wait(lock, [&] { return state_->waiting.size() < kMostBytes; });
  g_pending_bytes += static_cast<int64_t>(text.size());
  state_->waiting += text;
  state_->changed.notify_all();
}

bool LineFile::flush(std::chrono::milliseconds patience) {
  std::unique_lock lock(state_->mutex);
  const auto done = [this] { return state_->done(); };
  if (patience != kForever) return state_->changed.wait_for(lock, patience, done);
  state_->changed.wait(lock, done);
  return true;
}

void LineFile::write_lines(const std::shared_ptr<State>& state) {
  std::unique_lock lock(state->mutex);
  for (;;) {
    state->changed.wait(lock, [&] { return state->over || !state->waiting.empty(); });
    if (state->waiting.empty()) return;
    const std::string lines = std::exchange(state->waiting, {});
    state->writes = true;
    lock.unlock();
    const int problem = write_all(state->file.get(), lines);
    ++g_num_written;
    g_pending_bytes -= static_cast<int64_t>(lines.size());
    g_pending_bytes.notify_all();
    lock.lock();
    if (problem != 0 && !state->left) {
      lock.unlock();
      state->on_problem(std::strerror(problem));
      lock.lock();
    }
    state->writes = false;
    state->changed.notify_all();
  }
}

void flush_line_files() {
  for (int64_t pending = g_pending_bytes; pending > 0; pending = g_pending_bytes) g_pending_bytes.wait(pending);
}

LineFilesActivity line_files_activity() {
  return {.pending = g_pending_bytes > 0, .num_written = g_num_written.load()};
}

}  // namespace tri
