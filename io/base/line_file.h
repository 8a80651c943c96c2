// Files of lines: metrics.jsonl, log.txt, events.jsonl. If a full disk or a crash has truncated a line, it stays a
// separate line: later appends begin on a new one.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string>

#include "io/base/error.h"
#include "io/base/file_writer.h"

namespace tri {

// Appends lines on its own thread (FileWriter), so that callers never wait for storage. The operating system gets a
// line within microseconds, unless storage hangs; then up to kMaxBytes of lines are kept in memory, and more are
// dropped.
class LineFile {
 public:
  static constexpr size_t kMaxBytes = size_t{64} << 20;
  static constexpr std::chrono::milliseconds kForever = FileWriter::kForever;

  // kRequired: a checkpoint is published only after the operating system has the lines before it.
  enum class Need { kOptional, kRequired };

  // Appends to the file at `path`, which is created if it is missing. `report` receives a warning when lines begin to
  // be lost, and when they are written again. `close_timeout`: how long the destructor waits for storage. Fails if the
  // file cannot be opened.
  static Result<std::unique_ptr<LineFile>> open(const std::string& path, std::function<void(const std::string&)> report,
                                                std::chrono::milliseconds close_timeout = kForever,
                                                Need need = Need::kOptional);

  // Appends `text`, which must consist of whole lines. Safe for concurrent use.
  void append(std::string text);
  // Returns whether storage has accepted or refused everything appended so far, within `timeout`. Safe for concurrent
  // use.
  bool flush(std::chrono::milliseconds timeout = kForever) { return writer_->flush(timeout); }

 private:
  struct Lines;
  LineFile(std::shared_ptr<Lines> lines, std::unique_ptr<FileWriter> writer);

  const std::shared_ptr<Lines> lines_;
  const std::unique_ptr<FileWriter> writer_;
};

// Appends `line` and a newline in a single write to the file at `path`, which is created if it is missing. A lock
// separates writers of two nodes on file systems without atomic appends (NFS); a writer that does not get it within
// `lock_timeout` writes without it. Waits for storage. Fails if the line may not be written.
Result<void> append_line(const std::string& path, const std::string& line,
                         std::chrono::milliseconds lock_timeout = std::chrono::milliseconds(400));

}  // namespace tri
