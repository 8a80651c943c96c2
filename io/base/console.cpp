#include "io/base/console.h"

#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstdio>

#include "io/base/readable_text.h"
#include "io/base/stderr.h"

namespace tri {
namespace {

constexpr std::chrono::seconds kErrorExitTimeout{10};  // for a standard error that does not accept what is queued
std::atomic<int> g_output_error{0};                    // errno of the first write to standard output that failed

void note_output_error() {
  int none = 0;
  g_output_error.compare_exchange_strong(none, errno == 0 ? EIO : errno);
}

void write_out(std::string_view bytes) {
  errno = 0;
  if (!bytes.empty() && std::fwrite(bytes.data(), 1, bytes.size(), stdout) != bytes.size()) note_output_error();
}

}  // namespace

void print_text(std::string_view text) { write_out(readable_text(text)); }
void print_coloured(std::string_view text) { write_out(readable_coloured_text(text)); }
void print_json(std::string_view json) {
  while (json.ends_with('\n')) json.remove_suffix(1);
  write_out(readable_json(json) + "\n");
}

void print_bytes(std::string_view bytes) {
  write_out(bytes);
  errno = 0;
  if (std::fflush(stdout) != 0) note_output_error();
}

void print_error_text(std::string_view text) { write_stderr(readable_text(text)); }

Result<void> finish_output() {
  flush_stderr(kErrorExitTimeout);
  const auto result = [](int error) -> Result<void> {
    if (error == EPIPE) return {};
    return system_error(error, "standard output: the output is incomplete");
  };
  if (g_output_error != 0) return result(g_output_error);
  errno = 0;
  if (std::fflush(stdout) != 0) return result(errno);
  // Detects errors of text that others have printed, such as the option parser's help.
  if (std::ferror(stdout) != 0) return result(EIO);
  // Network file systems may report a full disk only when a descriptor is closed.
  const int copy = ::dup(STDOUT_FILENO);
  if (copy < 0) return {};  // closed from the start, so nothing was printed
  if (::close(copy) != 0 && errno != EINTR) return result(errno);
  return {};
}

}  // namespace tri
