#include "io/base/stderr.h"

#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <string>

#include "io/base/file_writer.h"

namespace tri {
namespace {

constexpr size_t kMostQueued = size_t{8} << 20;

std::atomic<FileWriter*> g_writer{nullptr};  // never deleted: any thread may print until the process ends

void write_now(std::string_view text) {
  while (!text.empty()) {
    const ssize_t written = ::write(STDERR_FILENO, text.data(), text.size());
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) return;
    text.remove_prefix(static_cast<size_t>(written));
  }
}

}  // namespace

void write_stderr(std::string_view text) {
  FileWriter* const writer = g_writer;
  if (writer == nullptr) return write_now(text);
  writer->post(text.size(), [line = std::string(text)]() -> Result<void> {
    write_now(line);
    return {};
  });
}

void write_stderr_in_background() {
  if (g_writer != nullptr) return;
  auto started = FileWriter::start({.path = "standard error", .max_bytes = kMostQueued, .report = nullptr});
  if (started) g_writer = started.value().release();
}

void flush_stderr(std::chrono::milliseconds timeout) {
  if (FileWriter* const writer = g_writer) writer->flush(timeout);
}

}  // namespace tri
