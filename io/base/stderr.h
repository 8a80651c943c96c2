// Writes to standard error, for console.h and log.h. It may be a file on storage that stalls, or a pipe without a
// reader, so programs that must not wait for it write in the background. Safe for concurrent use.
#pragma once

#include <chrono>
#include <string_view>

namespace tri {

// Writes the text unchanged, in one call, so that lines of several processes do not mix. Errors are ignored.
void write_stderr(std::string_view text);

// From now on a thread writes, and write_stderr() never waits; texts beyond 8 MiB in the queue are dropped. Does
// nothing if called again or if no thread can be created.
void write_stderr_in_background();

// Waits until the texts so far are written, but not longer than `timeout`.
void flush_stderr(std::chrono::milliseconds timeout);

}  // namespace tri
