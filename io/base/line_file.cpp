#include "io/base/line_file.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

#include "io/base/file.h"
#include "io/base/poll.h"

namespace tri {
namespace {

// Returns whether the last line of the file lacks its newline; false if the file cannot be read.
bool ends_torn(int fd) {
  struct stat file {};
  char last = '\n';
  return ::fstat(fd, &file) == 0 && file.st_size > 0 && ::pread(fd, &last, 1, file.st_size - 1) == 1 && last != '\n';
}

// Accepts a file that can only be written. Returns its descriptor, or -1 with errno.
int open_to_append(const std::string& path) {
  constexpr int kFlags = O_APPEND | O_CREAT | O_CLOEXEC;
  const int file = ::open(path.c_str(), O_RDWR | kFlags, 0666);
  return file < 0 && errno == EACCES ? ::open(path.c_str(), O_WRONLY | kFlags, 0666) : file;
}

}  // namespace

struct LineFile::Lines {
  std::string path;
  Descriptor file;
  bool torn = false;  // the last line lacks its newline

  Result<void> write(const std::string& text) {
    const std::string bytes = torn ? "\n" + text : text;
    for (size_t at = 0; at < bytes.size();) {
      const ssize_t written = ::write(file.get(), bytes.data() + at, bytes.size() - at);
      if (written < 0 && errno == EINTR) continue;
      if (written <= 0) return system_error(written == 0 ? ENOSPC : errno, "{}", path);
      at += static_cast<size_t>(written);
      torn = bytes[at - 1] != '\n';
    }
    return {};
  }
};

LineFile::LineFile(std::shared_ptr<Lines> lines, std::unique_ptr<FileWriter> writer)
    : lines_(std::move(lines)), writer_(std::move(writer)) {}

Result<std::unique_ptr<LineFile>> LineFile::open(const std::string& path,
                                                 std::function<void(const std::string&)> report,
                                                 std::chrono::milliseconds close_timeout, Need need) {
  auto lines = std::make_shared<Lines>();
  lines->path = path;
  lines->file = Descriptor(open_to_append(path));
  if (lines->file.get() < 0) return system_error(errno, "{}", path);
  lines->torn = ends_torn(lines->file.get());
  auto writer = FileWriter::start({.path = path,
                                   .max_bytes = kMaxBytes,
                                   .report = std::move(report),
                                   .required = need == Need::kRequired,
                                   .close_timeout = close_timeout});
  if (!writer) return writer.error();
  return std::unique_ptr<LineFile>(new LineFile(std::move(lines), std::move(writer).value()));
}

void LineFile::append(std::string text) {
  const size_t bytes = text.size();
  writer_->post(bytes, [lines = lines_, text = std::move(text)] { return lines->write(text); });
}

Result<void> append_line(const std::string& path, const std::string& line, std::chrono::milliseconds lock_timeout) {
  constexpr std::chrono::milliseconds kPause{20};
  const int file = open_to_append(path);
  if (file < 0) return system_error(errno, "{}", path);
  poll_for(lock_timeout, kPause, [&] { return ::flock(file, LOCK_EX | LOCK_NB) == 0 || errno != EWOULDBLOCK; });
  const std::string bytes = (ends_torn(file) ? "\n" : "") + line + "\n";
  const ssize_t written = ::write(file, bytes.data(), bytes.size());
  const bool whole = written == static_cast<ssize_t>(bytes.size());
  const int problem = written < 0 ? errno : ENOSPC;
  // A network file system may report only at close that the line did not fit.
  const bool closed = ::close(file) == 0;
  if (!whole) return system_error(problem, "{}", path);
  return closed ? Result<void>() : system_error(errno, "{}: closing the file", path);
}

}  // namespace tri
