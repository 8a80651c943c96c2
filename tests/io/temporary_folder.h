// A new folder that is removed at the end of the test.
#pragma once

#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "io/base/error.h"

namespace tri {

class TemporaryFolder {
 public:
  explicit TemporaryFolder(const std::filesystem::path& parent = std::filesystem::temp_directory_path()) {
    std::string name = (parent / "trireme-XXXXXX").string();
    TRI_REQUIRE(::mkdtemp(name.data()) != nullptr, "no temporary folder");
    path_ = name;
  }
  ~TemporaryFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  std::string operator/(const std::string& name) const { return (path_ / name).string(); }
  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

// Returns a folder in memory if possible, for small files that a test rewrites thousands of times: some file systems
// flush each of them to the disk.
inline std::filesystem::path parent_in_memory() {
  return ::access("/dev/shm", W_OK) == 0 ? "/dev/shm" : std::filesystem::temp_directory_path();
}

inline std::string read_all(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

inline void write_all(const std::string& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary) << bytes;
}

// Writes a file of one line, like those of /proc and /sys, and creates its folders.
inline void put(const std::string& path, const std::string& line) {
  std::filesystem::create_directories(std::filesystem::path(path).parent_path());
  write_all(path, line + "\n");
}

}  // namespace tri
