#include "io/base/error.h"

#include <sys/resource.h>

#include <cerrno>
#include <cstring>
#include <limits>

#include "io/base/format.h"

namespace tri {

std::string address_space_limit() {
  rlimit limit{};
  if (::getrlimit(RLIMIT_AS, &limit) != 0 || limit.rlim_cur > std::numeric_limits<int64_t>::max()) return "";
  return fmt::format(" (the address space of a process is limited to {}: RLIMIT_AS, ulimit -v)",
                     format_bytes(static_cast<int64_t>(limit.rlim_cur)));
}

Error system_error_of(int os_error, const std::string& text) {
  const std::string limit = os_error == ENOMEM ? address_space_limit() : "";
  return {fmt::format("{}: {}{}", text, std::strerror(os_error), limit), ExitCode::kFile, os_error};
}

void require_failed(const char* file, int line, const char* condition, const std::string& message) {
  // Internal errors have no exit status of their own: abort's 134 would lose the job's message, 1 means "a bug".
  throw Fatal(static_cast<ExitCode>(1),
              fmt::format("internal error at {}:{}: {} [{}]", file, line, message, condition));
}

}  // namespace tri
