// Files: reads, read-only maps, and writes that become visible atomically. Errors have code kFile and the errno.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "io/base/error.h"

namespace tri {

// Owns an open file descriptor; -1: none.
class Descriptor {
 public:
  explicit Descriptor(int fd = -1) : fd_(fd) {}
  Descriptor(Descriptor&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Descriptor& operator=(Descriptor&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  ~Descriptor() { close(); }

  int get() const { return fd_; }
  void close();

 private:
  int fd_;
};

// Raises the limit of open files to `count` and some more, as far as the hard limit allows; the usual soft limit is
// 1,024.
void allow_open_files(int64_t count);

// Transfer all of `bytes` at byte `offset`, in as many calls as necessary; `path` is for messages. Fail if the file
// ends too early, and say where.
Result<void> read_at(int fd, const std::string& path, void* data, int64_t bytes, int64_t offset);
Result<void> write_at(int fd, const std::string& path, const void* data, int64_t bytes, int64_t offset);

// Returns the names in `folder`, without "." and "..", in no order. Fails if any part of it cannot be read; os_error is
// ENOENT if there is no such folder.
Result<std::vector<std::string>> list_folder(const std::string& folder);

// Makes names that were created, renamed or removed in `folder` durable.
Result<void> sync_folder(const std::string& folder);

// A file read at any offset. Movable. Safe for concurrent use. Failing storage is an error, whereas a mapped file would
// end the process.
class InputFile {
 public:
  static Result<InputFile> open(const std::string& path);

  int64_t bytes() const { return bytes_; }  // when it was opened
  Result<void> read(void* data, int64_t bytes, int64_t offset) const {
    return read_at(fd_.get(), path_, data, bytes, offset);
  }

 private:
  std::string path_;
  Descriptor fd_;
  int64_t bytes_ = 0;
};

// A whole file mapped read-only. Movable. Safe for concurrent use.
class MappedFile {
 public:
  static Result<MappedFile> open(const std::string& path);
  MappedFile() = default;
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;
  ~MappedFile();

  std::span<const std::byte> bytes() const { return {data_, size_}; }
  std::string_view text() const { return {reinterpret_cast<const char*>(data_), size_}; }

 private:
  const std::byte* data_ = nullptr;
  size_t size_ = 0;
};

// Writes to a temporary name next to `path`; commit() makes it durable (fsync of file and folder) and renames it.
// Without commit() or publish() the temporary file is removed. commit() reports the first failed write. Errors name
// `path`. The temporary name is PATH.TAG.tmp; without a tag, the process id is used. Writers on several hosts need
// tags. Not thread-safe.
class AtomicFile {
 public:
  static Result<AtomicFile> create(const std::string& path, const std::string& tag = "");
  AtomicFile(AtomicFile&& other) noexcept;
  ~AtomicFile();

  void write(const void* data, size_t bytes);
  Result<void> flush();    // makes what was written so far durable, under the temporary name
  Result<void> commit();   // flushes and renames
  Result<void> publish();  // renames: readers see the whole file, but it is not durable yet

 private:
  AtomicFile() = default;
  std::string path_, temporary_;
  std::FILE* file_ = nullptr;
  int error_ = 0;  // errno of the first failed write
};

Result<void> write_file(const std::string& path, std::string_view text, const std::string& tag = "");  // atomic

}  // namespace tri
