// A thread that writes one file, so that the threads that produce its contents never wait for storage.
//
// Every file that a run writes during its steps has a FileWriter: metrics.jsonl, log.txt and events.jsonl,
// TensorBoard's event file, ranks.h5, the segments of a timeline, and standard error. Each file has its own thread,
// because a stall of one file must not delay the others.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "io/base/error.h"

namespace tri {

inline constexpr const char* kFileWriterThread = "file writer";  // the name of these threads in stack traces

class FileWriter {
 public:
  static constexpr std::chrono::milliseconds kForever{-1};

  struct Options {
    std::string path;                     // for messages
    size_t max_bytes = size_t{64} << 20;  // of queued tasks; further tasks are dropped
    // Receives a warning when writes begin to fail or to be dropped, and again when they succeed, but not for every
    // write. Called on the writer's thread, or on the thread whose task is dropped. Null: no report.
    std::function<void(const std::string&)> report;
    // Checkpoints and the watchdog wait for this file: file_writer_activity(), flush_required_files().
    bool required = false;
    std::chrono::milliseconds close_timeout{0};  // how long the destructor waits for queued tasks
  };
  // Writes to the file, on the writer's thread. Errors are reported, and the next task runs.
  using Task = std::function<Result<void>()>;

  // Fails if no thread can be created.
  static Result<std::unique_ptr<FileWriter>> start(Options options);
  // Waits for queued tasks, for at most Options::close_timeout. If storage hangs, the thread is detached with its
  // tasks: it runs them once storage answers, if the process still lives, and reports nothing.
  ~FileWriter();
  FileWriter(const FileWriter&) = delete;
  FileWriter& operator=(const FileWriter&) = delete;

  // Queues `task`, which occupies `bytes` until it is done. Returns false, and drops the task, if the queue is full.
  // Never waits for storage. Safe for concurrent use; tasks run in the order of the calls.
  bool post(size_t bytes, Task task);
  // Waits for the tasks posted so far. Returns false if that takes longer than `timeout`. Safe for concurrent use.
  bool flush(std::chrono::milliseconds timeout = kForever);

 private:
  struct State;
  explicit FileWriter(std::shared_ptr<State> state) : state_(std::move(state)) {}
  static void run(const std::shared_ptr<State>& state);

  const std::shared_ptr<State> state_;
};

// The progress of all required files of this process, for monitoring storage. Safe for concurrent use.
struct FileWriterActivity {
  bool pending = false;   // tasks are queued
  uint32_t num_done = 0;  // tasks done so far
};
FileWriterActivity file_writer_activity();
// Waits until no required file has queued tasks: the operating system then has everything posted before, which outlives
// this process. Safe for concurrent use.
void flush_required_files();

}  // namespace tri
