#include "io/base/text_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>

#include "io/base/file.h"

namespace tri {

Result<std::string> read_text(const std::string& path) {
  const Descriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (file.get() < 0) return system_error(errno, "{}", path);
  std::string text;
  char buffer[16384];
  while (true) {
    const ssize_t got = ::read(file.get(), buffer, sizeof buffer);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return system_error(errno, "{}: reading at byte {}", path, text.size());
    if (got == 0) return text;
    text.append(buffer, static_cast<size_t>(got));
  }
}

std::string text_of(const std::string& path) {
  auto text = read_text(path);
  return text ? std::move(text).value() : "";
}

std::string first_line_of(const std::string& path) {
  std::string text = text_of(path);
  text.resize(std::min(text.find('\n'), text.size()));
  return text;
}

}  // namespace tri
