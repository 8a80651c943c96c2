#include "io/checkpoint/run_lock.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <optional>
#include <sstream>

#include "io/base/log.h"
#include "io/checkpoint/folder.h"

namespace tri {
namespace {

struct Holder {
  std::string host, attempt, started;
  int64_t pid = 0;
  BatchStart start;
};

std::string host_name() {
  char name[256] = "";
  ::gethostname(name, sizeof name - 1);
  return name;
}

std::string text_of(const Holder& holder) {
  std::string text =
      fmt::format("host {}\npid {}\nattempt {}\nstarted {}\n", holder.host, holder.pid, holder.attempt, holder.started);
  if (!holder.start.job.empty()) text += fmt::format("job {}\nrestart {}\n", holder.start.job, holder.start.restart);
  return text;
}

// Nothing when the text is empty (given up) or not ours to understand (cut short).
std::optional<Holder> holder_of(const std::string& text) {
  Holder holder;
  std::istringstream in(text);
  std::string host, pid, attempt, started;
  if (!(in >> host >> holder.host >> pid >> holder.pid >> attempt >> holder.attempt >> started >> holder.started) ||
      host != "host" || pid != "pid" || attempt != "attempt" || started != "started")
    return std::nullopt;
  std::string job, restart;
  if (!(in >> job >> holder.start.job >> restart >> holder.start.restart) || job != "job" || restart != "restart")
    holder.start = {};
  return holder;
}

std::string describe(const std::optional<Holder>& holder) {
  if (!holder) return "another process";
  return fmt::format("process {} on {} (attempt {}, since {})", holder->pid, holder->host, holder->attempt,
                     holder->started);
}

bool dead_here(const Holder& holder) {
  return holder.host == host_name() && ::kill(static_cast<pid_t>(holder.pid), 0) != 0 && errno == ESRCH;
}

bool earlier_start(const Holder& holder, const BatchStart& own) {
  return !own.job.empty() && holder.start.job == own.job && holder.start.restart < own.restart;
}

std::string now() {
  const time_t seconds = ::time(nullptr);
  struct tm utc {};
  ::gmtime_r(&seconds, &utc);
  char text[32];
  ::strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%SZ", &utc);
  return text;
}

std::string contents(int fd) {
  char buffer[1024];
  const ssize_t got = ::pread(fd, buffer, sizeof buffer, 0);
  return {buffer, static_cast<size_t>(got > 0 ? got : 0)};
}

// Two names of one file.
bool same_file(int fd, const std::string& path) {
  struct stat ours {
  }, named{};
  return ::fstat(fd, &ours) == 0 && ::stat(path.c_str(), &named) == 0 && ours.st_ino == named.st_ino &&
         ours.st_dev == named.st_dev;
}

}  // namespace

Result<RunLock> RunLock::take(const std::string& dir, const std::string& attempt, const BatchStart& start, How how) {
  TRI_REQUIRE(valid_attempt(attempt), "attempt \"{}\"", attempt);
  RunLock lock;
  lock.path_ = dir + "/run.lock";
  while (true) {
    lock.file_ = Descriptor(::open(lock.path_.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666));
    if (lock.file_.get() < 0) return system_error(errno, "{}", lock.path_);
    if (how == How::kTextAlone) break;
    if (::flock(lock.file_.get(), LOCK_EX | LOCK_NB) != 0) {
      const int why = errno;
      if (why == EWOULDBLOCK) {
        const auto holder = holder_of(contents(lock.file_.get()));
        if (holder && earlier_start(*holder, start)) {
          if (::unlink(lock.path_.c_str()) != 0 && errno != ENOENT) return system_error(errno, "{}", lock.path_);
          log_warn("{}: taken over from {}, an earlier start of job {}, which may live on but publishes nothing more",
                   lock.path_, describe(holder), start.job);
          continue;
        }
        return file_error("{}: the run folder is in use by {}{}; wait for it, stop it, or choose another run.dir",
                          lock.path_, describe(holder),
                          holder && dead_here(*holder) ? ", which is gone, but a child of it lives" : "");
      }
      if (why != ENOLCK && why != ENOSYS && why != EOPNOTSUPP && why != EINVAL)
        return system_error(why, "{}: flock", lock.path_);
      how = How::kTextAlone;
      break;
    }
    if (same_file(lock.file_.get(), lock.path_)) break;  // else it was removed meanwhile: lock the new one
  }

  if (const auto holder = holder_of(contents(lock.file_.get()))) {
    if (how == How::kTextAlone && !dead_here(*holder) && !earlier_start(*holder, start))
      return file_error("{}: the run folder is in use by {}; if that is no longer so, remove the file", lock.path_,
                        describe(holder));
    log_info("{}: taken over from {}, which ended without giving it up", lock.path_, describe(holder));
  }
  lock.text_ = text_of({.host = host_name(), .attempt = attempt, .started = now(), .pid = ::getpid(), .start = start});
  if (auto written =
          write_at(lock.file_.get(), lock.path_, lock.text_.data(), static_cast<int64_t>(lock.text_.size()), 0);
      !written)
    return written.error();
  if (::ftruncate(lock.file_.get(), static_cast<off_t>(lock.text_.size())) != 0)
    return system_error(errno, "{}", lock.path_);
  return lock;
}

RunLock::~RunLock() {
  // Emptied only when still ours; the lock itself goes with the descriptor.
  if (file_.get() >= 0 && contents(file_.get()) == text_ && ::ftruncate(file_.get(), 0) != 0)
    log_warn("{}: {}", path_, std::strerror(errno));
}

Result<void> RunLock::check() const {
  if (!same_file(file_.get(), path_)) return file_error("{}: removed or replaced while this run held it", path_);
  if (const std::string text = contents(file_.get()); text != text_)
    return file_error("{}: taken meanwhile by {}", path_, describe(holder_of(text)));
  return {};
}

}  // namespace tri
