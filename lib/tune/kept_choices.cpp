#include "lib/tune/kept_choices.h"

#include <cerrno>

#include "io/base/file.h"

namespace tri {
namespace {

// Calls f(line) for every line that ends.
template <class F>
void for_each_line(std::string_view text, F f) {
  for (size_t end = text.find('\n'); end != text.npos; end = text.find('\n')) {
    f(text.substr(0, end));
    text.remove_prefix(end + 1);
  }
}

}  // namespace

Result<std::string> read_choices(const std::string& file, const Retry& retry) {
  auto text = retried(retry, [&]() -> Result<std::string> {
    const auto opened = InputFile::open(file);
    if (!opened) return opened.error();
    std::string all(static_cast<size_t>(opened.value().bytes()), '\0');
    if (auto read = opened.value().read(all.data(), opened.value().bytes(), 0); !read) return read.error();
    return all;
  });
  if (text || text.error().os_error == ENOENT) return text ? std::move(text) : std::string();
  Error error = text.error();
  if (passes(error.os_error)) error.code = ExitCode::kDrained;
  return error;
}

std::string kept_choice(std::string_view text, const std::string& key) {
  std::string value;
  for_each_line(text, [&](std::string_view line) {
    if (line.starts_with(key + " ")) value = line.substr(key.size() + 1);
  });
  return value;
}

std::string with_choice(std::string_view text, const std::string& key, const std::string& value) {
  std::string all;
  for_each_line(text, [&](std::string_view line) {
    if (!line.starts_with(key + " ")) all.append(line).push_back('\n');
  });
  return all + key + " " + value + "\n";
}

}  // namespace tri
