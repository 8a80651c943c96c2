// Lines that are appended to a file by a thread of its own: who has a line to say does not wait for storage. A line is
// with the operating system within microseconds, unless storage hangs; then lines are kept in memory.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "io/base/error.h"

namespace tri {

class LineFile {
 public:
  static constexpr size_t kMostBytes = size_t{64} << 20;  // kept in memory
  static constexpr std::chrono::milliseconds kForever{-1};

  // Appends to the file at `path`, made when it is missing. `on_problem`: called on the file's thread, with errno's
  // text, when lines could not be written and are lost. `patience`: of the destructor, with storage that hangs.
  static Result<std::unique_ptr<LineFile>> open(const std::string& path,
                                                std::function<void(const std::string&)> on_problem,
                                                std::chrono::milliseconds patience = kForever);
  ~LineFile();
  LineFile(const LineFile&) = delete;
  LineFile& operator=(const LineFile&) = delete;

  // `text`: whole lines. Any thread. Waits only while kMostBytes wait already.
  void append(std::string text);
  // Whether storage has taken all that was appended so far, or refused it, within `patience`. Any thread.
  bool flush(std::chrono::milliseconds patience = kForever);

 private:
  struct State;
  LineFile(std::shared_ptr<State> state, std::chrono::milliseconds patience);
  static void write_lines(const std::shared_ptr<State>& state);

  const std::shared_ptr<State> state_;
  const std::chrono::milliseconds patience_;
};

// Of all files of this process: for who looks whether storage goes on.
struct LineFilesActivity {
  bool pending = false;      // lines wait for storage
  uint32_t num_written = 0;  // batches of lines so far
};
LineFilesActivity line_files_activity();
// Waits until none do: what was said before is with the operating system then, and outlives this process.
void flush_line_files();

}  // namespace tri
