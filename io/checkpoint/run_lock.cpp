#include "io/checkpoint/run_lock.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <sstream>
#include <thread>

#include "io/base/clock.h"
#include "io/base/date.h"
#include "io/base/host.h"
#include "io/base/log.h"
#include "io/base/within.h"
#include "io/checkpoint/folder.h"

namespace tri {
namespace {

constexpr const char* kDriverField = "supervise";

struct Holder {
  std::string host, attempt, started;
  std::string run;     // absolute path of the run's folder; "": unknown
  bool is_run = true;  // false: the file says that the holder is not a run
  int64_t pid = 0;
  BatchStart start;
};

// Formats one line per field: name, blank, value.
std::string text_of(const Holder& holder) {
  std::string text = fmt::format("host {}\npid {}\nattempt {}\nstarted {}\nrun {}\n", holder.host, holder.pid,
                                 holder.attempt, holder.started, holder.run);
  if (!holder.start.job.empty()) text += fmt::format("job {}\nrestart {}\n", holder.start.job, holder.start.restart);
  return text;
}

// Returns none if the text is empty (the lock was released) or incomplete.
std::optional<Holder> holder_of(const std::string& text) {
  std::map<std::string, std::string> fields;
  std::istringstream in(text);
  for (std::string line; std::getline(in, line);) {
    const size_t blank = std::min(line.find(' '), line.size());
    fields[line.substr(0, blank)] = line.substr(std::min(blank + 1, line.size()));
  }
  const bool says_run = fields.contains("run");
  for (const char* name : {"host", "pid", "attempt", "started"})
    if (fields[name].empty()) return std::nullopt;
  const auto number = [&](const char* name) { return std::strtoll(fields[name].c_str(), nullptr, 10); };
  Holder holder{.host = fields["host"],
                .attempt = fields["attempt"],
                .started = fields["started"],
                .run = fields["run"],
                .is_run = !says_run || !fields["run"].empty(),
                .pid = number("pid")};
  if (!fields["job"].empty()) holder.start = {.job = fields["job"], .restart = static_cast<int>(number("restart"))};
  return holder;
}

// Returns "process 5 on node7 (attempt x, since y)".
std::string describe(const std::optional<Holder>& holder) {
  if (!holder) return "another process";
  return fmt::format("process {} on {} (attempt {}, since {})", holder->pid, holder->host, holder->attempt,
                     holder->started);
}

constexpr const char* kStaleTextRemedy = "; if that process no longer runs, remove the file";

// Returns the error that names the lock's holder and the run that cannot take it.
Error refusal(const std::string& path, const std::string& field, const std::optional<Holder>& holder,
              const std::string& run, const std::string& remedy) {
  if (field == kDriverField)
    return file_error("{}: the run is already supervised by {}{}", path, describe(holder), remedy);
  if (field == "run.dir") return file_error("{}: the run folder is in use by {}{}", path, describe(holder), remedy);
  const std::string of_run = holder && !holder->run.empty() ? fmt::format("run {}, ", holder->run) : "";
  return file_error("{}: {} is in use by {}{}{}{}", path, field, of_run, describe(holder),
                    run.empty() ? "" : fmt::format(", so run {} cannot use it", run), remedy);
}

bool dead_here(const Holder& holder) {
  return holder.host == host_name() && ::kill(static_cast<pid_t>(holder.pid), 0) != 0 && errno == ESRCH;
}

bool earlier_start(const Holder& holder, const BatchStart& own) {
  return !own.job.empty() && holder.start.job == own.job && holder.start.restart < own.restart;
}

// A process other than a run holds a folder only while it removes checkpoints, so a starting run waits for it.
class LockTimeout {
 public:
  LockTimeout(const std::string& path, const std::string& run) : path_(path), run_(run) {}

  // Returns whether to try again; if so, it has slept first.
  bool waits_for(const std::optional<Holder>& holder) {
    if (run_.empty() || !holder || holder->is_run || dead_here(*holder) || tries_ == kMostTries) return false;
    if (tries_++ == 0) log_info("{}: waiting for {}, which is not a run, to release the lock", path_, describe(holder));
    std::this_thread::sleep_for(std::chrono::milliseconds(200));
    return true;
  }

 private:
  // Five minutes: the watchdog would take more than half of fault.setup_seconds (900) for a hang.
  static constexpr int kMostTries = 1500;
  const std::string& path_;
  const std::string& run_;
  int tries_ = 0;
};

std::string now() { return utc_date(wall_seconds(), "%FT%TZ"); }

Result<std::string> contents(int fd, const std::string& path) {
  std::string text(16 << 10, '\0');  // paths may be long
  const ssize_t got = ::pread(fd, text.data(), text.size(), 0);
  if (got < 0) return system_error(errno, "{}: reading it", path);
  text.resize(static_cast<size_t>(got));
  return text;
}

// Returns whether both refer to one file. Fails if storage does not answer.
Result<bool> same_file(int fd, const std::string& path) {
  struct stat own {
  }, named{};
  if (::stat(path.c_str(), &named) != 0) {
    if (errno == ENOENT) return false;
    return system_error(errno, "{}", path);
  }
  if (::fstat(fd, &own) != 0) return system_error(errno, "{}", path);
  return own.st_ino == named.st_ino && own.st_dev == named.st_dev;
}

}  // namespace

Result<RunLock::File> RunLock::File::take(const std::string& path, const std::string& field, const std::string& run,
                                          const std::string& attempt, const BatchStart& start, How how) {
  File lock;
  lock.path_ = path;
  LockTimeout timeout(path, run);
  while (true) {
    lock.file_ = Descriptor(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666));
    if (lock.file_.get() < 0) return system_error(errno, "{}", path);
    if (how == How::kTextAlone) break;
    if (::flock(lock.file_.get(), LOCK_EX | LOCK_NB) != 0) {
      const int why = errno;
      if (why == EWOULDBLOCK) {
        const auto text = contents(lock.file_.get(), path);
        if (!text) return text.error();
        const auto holder = holder_of(text.value());
        if (holder && earlier_start(*holder, start)) {
          if (::unlink(path.c_str()) != 0 && errno != ENOENT) return system_error(errno, "{}", path);
          log_warn(
              "{}: the lock is taken over from {}, an earlier start of job {}; that process may still run, but it can "
              "no longer publish checkpoints",
              path, describe(holder), start.job);
          continue;
        }
        if (timeout.waits_for(holder)) continue;
        return refusal(
            path, field, holder, run,
            fmt::format("{}; wait for it{}",
                        holder && dead_here(*holder) ? ", which has ended, but a child process of it still runs" : "",
                        run.empty() ? " or stop it"
                                    : ", stop it, or choose another " + (field == kDriverField ? "run.dir" : field)));
      }
      if (why != ENOLCK && why != ENOSYS && why != EOPNOTSUPP && why != EINVAL)
        return system_error(why, "{}: flock", path);
      how = How::kTextAlone;
      break;
    }
    const auto same = same_file(lock.file_.get(), path);
    if (!same) return same.error();
    if (same.value()) break;  // otherwise the file was removed meanwhile: locks the new one
  }

  auto text = contents(lock.file_.get(), path);
  while (how == How::kTextAlone && text && timeout.waits_for(holder_of(text.value())))
    text = contents(lock.file_.get(), path);
  if (!text) return text.error();
  if (const auto holder = holder_of(text.value())) {
    if (how == How::kTextAlone && !dead_here(*holder) && !earlier_start(*holder, start))
      return refusal(path, field, holder, run, kStaleTextRemedy);
    log_info("{}: the lock is taken over from {}, which ended without releasing it", path, describe(holder));
  }
  lock.text_ = text_of(
      {.host = host_name(), .attempt = attempt, .started = now(), .run = run, .pid = ::getpid(), .start = start});
  if (auto written = write_at(lock.file_.get(), path, lock.text_.data(), static_cast<int64_t>(lock.text_.size()), 0);
      !written)
    return written.error();
  if (::ftruncate(lock.file_.get(), static_cast<off_t>(lock.text_.size())) != 0 || ::fsync(lock.file_.get()) != 0)
    return system_error(errno, "{}", path);
  return lock;
}

RunLock::File::~File() {
  // The file is emptied only if it is still this lock's; closing the descriptor releases the lock itself. Storage that
  // hangs must not delay the end of a run: the kernel releases the lock when this process ends.
  constexpr std::chrono::seconds kTimeout{2};
  if (file_.get() < 0) return;
  const auto give_up = [path = path_, text = text_, file = std::make_shared<Descriptor>(std::move(file_))] {
    const auto found = contents(file->get(), path);
    if (found && found.value() == text && ::ftruncate(file->get(), 0) != 0)
      log_warn("{}: {}", path, std::strerror(errno));
    file->close();
    return true;
  };
  if (!within(path_, kTimeout, give_up, false))
    log_warn("{}: storage does not respond; the lock is not released", path_);
}

Result<void> RunLock::File::check() const {
  const auto same = same_file(file_.get(), path_);
  if (!same) return same.error();
  if (!same.value()) return file_error("{}: the lock file was removed or replaced while this run held it", path_);
  const auto text = contents(file_.get(), path_);
  if (!text) return text.error();
  if (text.value() != text_)
    return file_error("{}: the lock was taken by {}", path_, describe(holder_of(text.value())));
  return {};
}

Result<RunLock> RunLock::take(const RunFolders& folders, const std::string& attempt, const BatchStart& start, How how) {
  RunLock lock;
  std::string run;
  if (!folders.run.empty()) {
    std::error_code problem;
    run = std::filesystem::absolute(folders.run, problem).lexically_normal();
    if (problem) return system_error(problem.value(), "run.dir {}: reading the current folder", folders.run);
    auto of_run = File::take(folders.run + "/run.lock", "run.dir", run, attempt, start, how);
    if (!of_run) return of_run.error();
    lock.files_.push_back(std::move(of_run).value());
  }
  if (folders.checkpoints.empty()) return lock;
  std::error_code problem;
  std::filesystem::create_directories(folders.checkpoints, problem);
  if (problem) return system_error(problem.value(), "checkpoint.dir {}: creating the folder", folders.checkpoints);
  auto of_checkpoints =
      File::take(folders.checkpoints + "/checkpoint.lock", "checkpoint.dir", run, attempt, start, how);
  if (!of_checkpoints) return of_checkpoints.error();
  lock.files_.push_back(std::move(of_checkpoints).value());
  return lock;
}

Result<RunLock> RunLock::take_for_driver(const std::string& run_dir, const std::string& attempt,
                                         const BatchStart& start, How how) {
  RunLock lock;
  std::error_code problem;
  const std::string run = std::filesystem::absolute(run_dir, problem).lexically_normal();
  if (problem) return system_error(problem.value(), "run.dir {}: reading the current folder", run_dir);
  auto file = File::take(run_dir + "/supervise.lock", kDriverField, run, attempt, start, how);
  if (!file) return file.error();
  lock.files_.push_back(std::move(file).value());
  return lock;
}

Result<void> RunLock::check() const {
  for (const File& file : files_)
    if (auto own = file.check(); !own) return own;
  return {};
}

Result<std::optional<LockHolder>> holder_of_lock(const std::string& path, const BatchStart& start, RunLock::How how) {
  using Held = std::optional<LockHolder>;
  const Descriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (file.get() < 0 && errno == ENOENT) return Held();
  if (file.get() < 0) return system_error(errno, "{}", path);
  bool text_alone = how == RunLock::How::kTextAlone;
  if (!text_alone && ::flock(file.get(), LOCK_SH | LOCK_NB) == 0) return Held();
  if (!text_alone && errno != EWOULDBLOCK) {
    if (errno != ENOLCK && errno != ENOSYS && errno != EOPNOTSUPP && errno != EINVAL)
      return system_error(errno, "{}: flock", path);
    text_alone = true;
  }
  const auto text = contents(file.get(), path);
  if (!text) return text.error();
  const auto holder = holder_of(text.value());
  if (text_alone && (!holder || dead_here(*holder))) return Held();
  if (holder && earlier_start(*holder, start)) return Held();
  return Held({.attempt = holder ? holder->attempt : "",
               .job = holder ? holder->start.job : "",
               .text = describe(holder),
               .by_text = text_alone});
}

std::string stale_lock_remedy(const LockHolder& holder) { return holder.by_text ? kStaleTextRemedy : ""; }

Result<void> see_lock(const std::string& checkpoints, const std::string& attempt) {
  const std::string path = checkpoints + "/checkpoint.lock";
  const Descriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (file.get() < 0) return system_error(errno, "{}", path);
  const auto text = contents(file.get(), path);
  if (!text) return text.error();
  const auto holder = holder_of(text.value());
  if (holder && holder->attempt == attempt) return {};
  // Reported as a missing file: this start's text may not be visible here yet, or be in another file system.
  return Error{fmt::format("{}: expected the lock of this start's attempt {}, found {}", path, attempt,
                           holder ? describe(holder) : "no attempt"),
               ExitCode::kFile, ENOENT};
}

}  // namespace tri
