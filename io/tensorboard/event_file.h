// Event files of TensorBoard: scalars by tag and step, in records with checksums.
//   record   u64 length, u32 masked CRC of it, data, u32 masked CRC of the data; little-endian
//   CRC      CRC-32C, rotated right by 15 bits, + 0xa282ead8
//   data     an Event: wall_time 1, step 2, file_version 3, summary 5 {value 1 {tag 1, simple_value 2}},
//            session_log 7 {status 1}
// All files of a folder are one run; TensorBoard reads them in the order of their names, which begin with a time.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "io/base/error.h"
#include "io/base/file_writer.h"

namespace tri {

using Scalars = std::vector<std::pair<std::string, double>>;  // tag and value

// The event file of one start of a run, written on its own thread (FileWriter): callers never wait for storage. A
// record that storage has accepted only in part is removed, and the next one follows the last complete record in the
// same file.
class TensorBoardFiles {
 public:
  // Creates `folder` and its file. Readers ignore the scalars of earlier starts from step `first_step` on, because
  // those steps are repeated. Trouble with storage is logged as a warning and does not end the run.
  TensorBoardFiles(std::string folder, int64_t first_step);

  // Adds the values at `step`, with the present time. Call from one thread at a time.
  void scalars(int64_t step, const Scalars& values);
  // Returns whether storage has accepted or refused everything added so far, within `timeout`.
  bool flush(std::chrono::milliseconds timeout);

 private:
  class File;
  std::shared_ptr<File> file_;
  std::unique_ptr<FileWriter> writer_;  // null: no thread could be created
};

uint32_t crc32c(std::string_view bytes);  // Castagnoli's polynomial 0x1EDC6F41, reflected

}  // namespace tri
