// Storage checks in the checkpoint folder. One rank of each node measures with its own file, which it removes.
#include <fcntl.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <vector>

#include "io/base/file.h"
#include "lib/doctor/checks.h"
#include "lib/doctor/timing.h"

namespace tri {
namespace {

constexpr int64_t kFileBytes = 16 << 20;

CheckResult broken(std::string problem, const CheckContext& context) {
  return {.measurements = {{.part = context.storage_dir, .problem = std::move(problem)}}};
}
CheckResult number(double value, const CheckContext& context) {
  return {.measurements = {{.part = context.storage_dir, .value = value}}};
}

class TestFile {
 public:
  explicit TestFile(const CheckContext& context, const char* name = "file")
      : path_(fmt::format("{}/.doctor.{}.{}.{}", context.storage_dir, context.job.host(), ::getpid(), name)),
        fd_(open_new(path_)),
        error_(fd_.get() < 0 ? errno : 0) {}
  ~TestFile() { ::unlink(path_.c_str()); }
  TestFile(const TestFile&) = delete;
  TestFile& operator=(const TestFile&) = delete;

  const std::string& path() const { return path_; }
  int fd() const { return fd_.get(); }
  Result<void> opened() const {
    if (fd_.get() < 0) return system_error(error_, "{}", path_);
    return {};
  }
  Result<void> sync() const {
    if (::fsync(fd_.get()) != 0) return system_error(errno, "{}: cannot sync the file to storage", path_);
    return {};
  }

 private:
  // All users may write to the folder, like /tmp, so an existing file of this name, such as a link, is never written
  // to.
  static int open_new(const std::string& path) {
    ::unlink(path.c_str());
    return ::open(path.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
  }

  const std::string path_;
  Descriptor fd_;
  const int error_;
};

// Returns incompressible numbers that differ between positions.
std::vector<uint64_t> pattern() {
  std::vector<uint64_t> words(static_cast<size_t>(kFileBytes) / sizeof(uint64_t));
  uint64_t word = 0x9E3779B97F4A7C15;
  for (uint64_t& out : words) out = word = (word ^ (word << 13)) * 0xBF58476D1CE4E5B9 + 1;
  return words;
}

Result<void> write_pattern(const TestFile& file, const std::vector<uint64_t>& words) {
  if (auto opened = file.opened(); !opened) return opened;
  if (auto put = write_at(file.fd(), file.path(), words.data(), kFileBytes, 0); !put) return put;
  return file.sync();
}

// Returns the seconds of the fastest of `rounds`, or the error.
template <class Act>
Result<double> fastest(int rounds, Act act) {
  double best = std::numeric_limits<double>::infinity();
  for (int round = 0; round < rounds; ++round) {
    Result<void> done;
    best = std::min(best, seconds_of([&] { done = act(round); }));
    if (!done) return done.error();
  }
  return best;
}

}  // namespace

CheckResult check_storage_space(CheckContext& context) {
  if (!context.speaks()) return {};
  struct statvfs info {};
  if (::statvfs(context.storage_dir.c_str(), &info) != 0)
    return broken(fmt::format("{}: cannot read its free space: {}", context.storage_dir, std::strerror(errno)),
                  context);
  return number(static_cast<double>(info.f_bavail) * static_cast<double>(info.f_frsize) / 1073741824.0, context);
}

CheckResult check_storage_write(CheckContext& context) {
  if (!context.speaks()) return {};
  const std::vector<uint64_t> words = pattern();
  const TestFile file(context);
  const auto seconds = fastest(2, [&](int) { return write_pattern(file, words); });
  if (!seconds) return broken(seconds.error().message, context);
  return number(1e-6 * kFileBytes / seconds.value(), context);
}

// Reads from storage if the page cache releases the file, else from the cache. The data must equal what was written.
CheckResult check_storage_read(CheckContext& context) {
  if (!context.speaks()) return {};
  const std::vector<uint64_t> words = pattern();
  const TestFile file(context);
  if (auto written = write_pattern(file, words); !written) return broken(written.error().message, context);
  std::vector<uint64_t> read(words.size());
  const auto seconds = fastest(2, [&](int) {
    ::posix_fadvise(file.fd(), 0, 0, POSIX_FADV_DONTNEED);
    return read_at(file.fd(), file.path(), read.data(), kFileBytes, 0);
  });
  if (!seconds) return broken(seconds.error().message, context);
  if (read != words)
    return broken(
        fmt::format("{}: the bytes read differ from those that were written; do not use this storage", file.path()),
        context);
  return number(1e-6 * kFileBytes / seconds.value(), context);
}

CheckResult check_storage_fsync(CheckContext& context) {
  if (!context.speaks()) return {};
  const TestFile file(context);
  const std::vector<char> page(4096, 'd');
  const auto seconds = fastest(8, [&](int round) -> Result<void> {
    if (auto opened = file.opened(); !opened) return opened;
    if (auto put = write_at(file.fd(), file.path(), page.data(), 4096, int64_t{4096} * round); !put) return put;
    return file.sync();
  });
  if (!seconds) return broken(seconds.error().message, context);
  return number(1e3 * seconds.value(), context);
}

CheckResult check_storage_rename(CheckContext& context) {
  if (!context.speaks()) return {};
  const TestFile target(context, "renamed");
  const auto seconds = fastest(4, [&](int) -> Result<void> {
    const TestFile file(context);
    if (auto opened = file.opened(); !opened) return opened;
    if (::rename(file.path().c_str(), target.path().c_str()) != 0)
      return system_error(errno, "{}: cannot rename the file", file.path());
    return sync_folder(context.storage_dir);
  });
  if (!seconds) return broken(seconds.error().message, context);
  return number(1e3 * seconds.value(), context);
}

}  // namespace tri
