// Event files of TensorBoard: scalars by tag and step, in records with checksums.
//   record   u64 length, u32 masked CRC of it, data, u32 masked CRC of the data; low bytes first
//   CRC      CRC-32C, rotated right by 15 bits, + 0xa282ead8
//   data     an Event: wall_time 1, step 2, file_version 3, summary 5 {value 1 {tag 1, simple_value 2}},
//            session_log 7 {status 1}
// All files of a folder are one run; TensorBoard reads them in the order of their names, which begin with a time.
#pragma once

#include <cstdint>
#include <cstdio>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "io/base/error.h"

namespace tri {

using Scalars = std::vector<std::pair<std::string, double>>;  // tag and value

// Writes for one start of a run. Trouble with the storage is told once in the log, and the next call begins a new file:
// what is torn ends a file for its readers, but not the run. One thread at a time.
class TensorBoardFiles {
 public:
  // `folder` is made. What earlier starts wrote of steps from `first_step` on is hidden: they are done again.
  TensorBoardFiles(std::string folder, int64_t first_step);
  ~TensorBoardFiles();
  TensorBoardFiles(const TensorBoardFiles&) = delete;
  TensorBoardFiles& operator=(const TensorBoardFiles&) = delete;

  // Now. They reach the file before this returns.
  void scalars(int64_t step, const Scalars& values);

 private:
  Result<void> open(int64_t first_step);
  Result<void> append(const std::string& event);

  const std::string folder_;
  std::string path_;
  std::FILE* file_ = nullptr;
  bool warned_ = false;
};

uint32_t crc32c(std::string_view bytes);  // Castagnoli's: polynomial 0x1EDC6F41, reflected

}  // namespace tri
