#include "io/base/file.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>

namespace tri {
namespace {

// A rename is durable only after the folder that holds the name is durable.
Result<void> sync_folder_of(const std::string& path) {
  return sync_folder(std::filesystem::path(path).parent_path().string());
}

}  // namespace

void Descriptor::close() {
  if (fd_ >= 0) ::close(std::exchange(fd_, -1));
}

void allow_open_files(int64_t count) {
  constexpr rlim_t kOthers = 512;  // for libraries, devices, peers
  const rlim_t wanted = static_cast<rlim_t>(count) + kOthers;
  struct rlimit limit {};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur >= wanted) return;
  limit.rlim_cur = std::min(wanted, limit.rlim_max);
  ::setrlimit(RLIMIT_NOFILE, &limit);  // if this fails, opening too many files fails later and names the file
}

Result<void> read_at(int fd, const std::string& path, void* data, int64_t bytes, int64_t offset) {
  for (int64_t done = 0; done < bytes;) {
    const ssize_t got = ::pread(fd, static_cast<char*>(data) + done, static_cast<size_t>(bytes - done), offset + done);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return system_error(errno, "{}: reading at byte {}", path, offset + done);
    if (got == 0)
      return file_error("{}: ends at byte {}, expected at least {}; truncated", path, offset + done, offset + bytes);
    done += got;
  }
  return {};
}

Result<void> write_at(int fd, const std::string& path, const void* data, int64_t bytes, int64_t offset) {
  for (int64_t done = 0; done < bytes;) {
    const ssize_t put =
        ::pwrite(fd, static_cast<const char*>(data) + done, static_cast<size_t>(bytes - done), offset + done);
    if (put < 0 && errno == EINTR) continue;
    if (put <= 0) return system_error(put == 0 ? ENOSPC : errno, "{}: writing at byte {}", path, offset + done);
    done += put;
  }
  return {};
}

Result<std::vector<std::string>> list_folder(const std::string& folder) {
  const std::unique_ptr<DIR, int (*)(DIR*)> stream(::opendir(folder.c_str()), ::closedir);
  if (!stream) return system_error(errno, "{}: listing the folder", folder);
  std::vector<std::string> names;
  while (true) {
    errno = 0;
    const dirent* entry = ::readdir(stream.get());
    if (entry == nullptr && errno != 0) return system_error(errno, "{}: listing the folder", folder);
    if (entry == nullptr) return names;
    if (const std::string_view name = entry->d_name; name != "." && name != "..") names.emplace_back(name);
  }
}

Result<void> sync_folder(const std::string& folder) {
  const std::string name = folder.empty() ? "." : folder;
  const Descriptor fd(::open(name.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (fd.get() < 0 || ::fsync(fd.get()) != 0) return system_error(errno, "{}: fsync", name);
  return {};
}

Result<InputFile> InputFile::open(const std::string& path) {
  InputFile file;
  file.path_ = path;
  file.fd_ = Descriptor(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (file.fd_.get() < 0) return system_error(errno, "{}", path);
  struct stat status {};
  if (::fstat(file.fd_.get(), &status) != 0) return system_error(errno, "{}", path);
  if (!S_ISREG(status.st_mode)) return file_error("{}: not a regular file", path);
  file.bytes_ = status.st_size;
  return file;
}

Result<MappedFile> MappedFile::open(const std::string& path) {
  const Descriptor fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (fd.get() < 0) return system_error(errno, "{}", path);
  struct stat status {};
  if (::fstat(fd.get(), &status) != 0) return system_error(errno, "{}", path);
  if (!S_ISREG(status.st_mode)) return file_error("{}: not a regular file", path);
  MappedFile file;
  file.size_ = static_cast<size_t>(status.st_size);
  if (file.size_ == 0) return file;
  void* memory = ::mmap(nullptr, file.size_, PROT_READ, MAP_SHARED, fd.get(), 0);
  if (memory == MAP_FAILED) return system_error(errno, "{}: mmap", path);
  file.data_ = static_cast<const std::byte*>(memory);
  return file;
}

MappedFile::MappedFile(MappedFile&& other) noexcept { *this = std::move(other); }

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  return *this;
}

MappedFile::~MappedFile() {
  if (data_ != nullptr) ::munmap(const_cast<std::byte*>(data_), size_);
}

Result<AtomicFile> AtomicFile::create(const std::string& path, const std::string& tag) {
  AtomicFile file;
  file.path_ = path;
  file.temporary_ = fmt::format("{}.{}.tmp", path, tag.empty() ? fmt::format("{}", ::getpid()) : tag);
  file.file_ = std::fopen(file.temporary_.c_str(), "wbe");
  if (file.file_ == nullptr) return system_error(errno, "{}", path);
  return file;
}

AtomicFile::AtomicFile(AtomicFile&& other) noexcept
    : path_(std::move(other.path_)),
      temporary_(std::move(other.temporary_)),
      file_(std::exchange(other.file_, nullptr)),
      error_(other.error_) {}

AtomicFile::~AtomicFile() {
  if (file_ == nullptr) return;
  std::fclose(file_);
  ::unlink(temporary_.c_str());
}

void AtomicFile::write(const void* data, size_t bytes) {
  if (error_ == 0 && bytes > 0 && std::fwrite(data, 1, bytes, file_) != bytes) error_ = errno;
}

Result<void> AtomicFile::flush() {
  if (error_ == 0 && (std::fflush(file_) != 0 || ::fsync(::fileno(file_)) != 0)) error_ = errno;
  if (error_ != 0) return system_error(error_, "{}", path_);
  return {};
}

Result<void> AtomicFile::commit() {
  if (auto flushed = flush(); !flushed) return flushed;
  if (auto published = publish(); !published) return published;
  return sync_folder_of(path_);
}

Result<void> AtomicFile::publish() {
  if (error_ == 0 && std::fflush(file_) != 0) error_ = errno;
  if (error_ != 0) return system_error(error_, "{}", path_);
  // A network file system may report only at close that a quota or a full disk has truncated the file.
  if (std::fclose(std::exchange(file_, nullptr)) != 0) {
    const int why = errno;
    ::unlink(temporary_.c_str());
    return system_error(why, "{}: closing the file", path_);
  }
  if (::rename(temporary_.c_str(), path_.c_str()) != 0) {
    const int why = errno;
    ::unlink(temporary_.c_str());
    return system_error(why, "{}", path_);
  }
  return {};
}

Result<void> write_file(const std::string& path, std::string_view text, const std::string& tag) {
  auto file = AtomicFile::create(path, tag);
  if (!file) return file.error();
  file.value().write(text.data(), text.size());
  return file.value().commit();
}

}  // namespace tri
