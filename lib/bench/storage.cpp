#include "lib/bench/storage.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <memory>

#include "io/base/file.h"

namespace tri {
namespace {

constexpr int64_t kBlockBytes = 8 << 20;

std::unique_ptr<char[]> make_block() {
  auto block = std::make_unique<char[]>(static_cast<size_t>(kBlockBytes));
  for (int64_t i = 0; i < kBlockBytes; ++i) block[static_cast<size_t>(i)] = static_cast<char>(i * i >> 7);
  return block;
}

Result<Descriptor> open_to_read(const std::string& path, int64_t& bytes) {
  Descriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  struct stat status {};
  if (file.get() < 0 || ::fstat(file.get(), &status) != 0) return file_error("{}: {}", path, std::strerror(errno));
  bytes = status.st_size;
  return file;
}

}  // namespace

Result<void> plain_write(const std::string& path, int64_t bytes) {
  static const std::unique_ptr<char[]> block = make_block();
  const Descriptor file(::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666));
  if (file.get() < 0) return file_error("{}: {}", path, std::strerror(errno));
  for (int64_t at = 0; at < bytes; at += kBlockBytes)
    if (auto put = write_at(file.get(), path, block.get(), std::min(kBlockBytes, bytes - at), at); !put) return put;
  if (::fsync(file.get()) != 0) return file_error("{}: fsync: {}", path, std::strerror(errno));
  return {};
}

Result<void> plain_read(const std::vector<std::string>& paths) {
  static const std::unique_ptr<char[]> block = make_block();
  for (const std::string& path : paths) {
    int64_t bytes = 0;
    const auto file = open_to_read(path, bytes);
    if (!file) return file.error();
    for (int64_t at = 0; at < bytes; at += kBlockBytes)
      if (auto got = read_at(file.value().get(), path, block.get(), std::min(kBlockBytes, bytes - at), at); !got)
        return got;
  }
  return {};
}

Result<bool> drop_from_cache(const std::vector<std::string>& paths) {
  const auto page = static_cast<size_t>(::sysconf(_SC_PAGESIZE));
  size_t pages = 0, resident = 0;
  for (const std::string& path : paths) {
    int64_t bytes = 0;
    const auto file = open_to_read(path, bytes);
    if (!file) return file.error();
    ::posix_fadvise(file.value().get(), 0, 0, POSIX_FADV_DONTNEED);
    const auto mapped = MappedFile::open(path);
    if (!mapped) return mapped.error();
    const auto all = mapped.value().bytes();
    std::vector<unsigned char> states((all.size() + page - 1) / page);
    if (::mincore(const_cast<std::byte*>(all.data()), all.size(), states.data()) != 0)
      return file_error("{}: mincore: {}", path, std::strerror(errno));
    pages += states.size();
    resident += static_cast<size_t>(std::count_if(states.begin(), states.end(), [](auto s) { return (s & 1) != 0; }));
  }
  return resident * 20 < pages;
}

void wait_for_writeback(const std::string& folder) {
  const Descriptor file(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (file.get() >= 0) ::syncfs(file.get());
}

}  // namespace tri
