// Files: read-only maps, and writes that become visible whole or not at all.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "io/base/error.h"

namespace tri {

// A whole file mapped read-only. Movable; unmapped at the end. Reading is thread-safe.
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

// Writes to a temporary name beside `path`; commit() makes it durable (fsync of file and folder) and renames it.
// Without a commit nothing is left behind. The first failure of a write is kept and reported by commit.
class AtomicFile {
 public:
  static Result<AtomicFile> create(const std::string& path);
  AtomicFile(AtomicFile&& other) noexcept;
  ~AtomicFile();

  void write(const void* data, size_t bytes);
  Result<void> commit();

 private:
  AtomicFile() = default;
  std::string path_, temporary_;
  std::FILE* file_ = nullptr;
  int error_ = 0;  // errno of the first failed write
};

Result<void> write_file(const std::string& path, std::string_view text);  // atomic

}  // namespace tri
