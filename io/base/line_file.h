// Files of lines: metrics.jsonl, log.txt, events.jsonl. A line that a full disk or a crash has cut short stays a line
// of its own: what is appended after it begins on a new line.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string>

#include "io/base/error.h"
#include "io/base/file_writer.h"

namespace tri {

// Appends lines by a thread of its own (FileWriter): a caller never waits for storage. A line is with the operating
// system within microseconds, unless storage hangs; then lines are kept in memory, up to kMaxBytes, and dropped beyond.
class LineFile {
 public:
  static constexpr size_t kMaxBytes = size_t{64} << 20;
  static constexpr std::chrono::milliseconds kForever = FileWriter::kForever;

  // kRequired: a checkpoint is published only when the lines before it are with the operating system.
  enum class Need { kOptional, kRequired };

  // Appends to the file at `path`, which is created where it is missing. `report` receives a warning when lines begin
  // to be lost, and when they are written again. `close_timeout`: how long the destructor waits for storage. Fails
  // where the file cannot be opened.
  static Result<std::unique_ptr<LineFile>> open(const std::string& path, std::function<void(const std::string&)> report,
                                                std::chrono::milliseconds close_timeout = kForever,
                                                Need need = Need::kOptional);

  // `text`: whole lines. Safe for concurrent use.
  void append(std::string text);
  // Whether storage has taken, or refused, all that was appended so far, within `timeout`. Safe for concurrent use.
  bool flush(std::chrono::milliseconds timeout = kForever) { return writer_->flush(timeout); }

 private:
  struct Lines;
  LineFile(std::shared_ptr<Lines> lines, std::unique_ptr<FileWriter> writer);

  const std::shared_ptr<Lines> lines_;
  const std::unique_ptr<FileWriter> writer_;
};

// Appends `line` and its end to the file at `path`, which is created where it is missing, in a single write. A lock
// keeps writers of two nodes apart where the file system has no append of its own (NFS); a writer that does not get it
// within `lock_timeout` writes without it. Waits for storage. Fails where the line is not known to be written.
Result<void> append_line(const std::string& path, const std::string& line,
                         std::chrono::milliseconds lock_timeout = std::chrono::milliseconds(400));

}  // namespace tri
