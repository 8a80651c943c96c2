#include "io/base/error.h"

#include <cstring>

namespace tri {

Error system_error_of(int os_error, const std::string& text) {
  return {fmt::format("{}: {}", text, std::strerror(os_error)), ExitCode::kFile, os_error};
}

void require_failed(const char* file, int line, const char* condition, const std::string& message) {
  // Internal errors have no exit status of their own: abort's 134 would lose the job's message, 1 means "a bug".
  throw Fatal(static_cast<ExitCode>(1),
              fmt::format("internal error at {}:{}: {} [{}]", file, line, message, condition));
}

}  // namespace tri
