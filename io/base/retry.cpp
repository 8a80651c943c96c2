#include "io/base/retry.h"

#include <cerrno>
#include <thread>

#include "io/base/format.h"
#include "io/base/log.h"

namespace tri {

bool is_transient(int os_error, Missing missing) {
  switch (os_error) {
    case EIO:
    case ESTALE:
    case ETIMEDOUT:
    case EAGAIN:
    case EREMOTEIO:
    case ENOTCONN:
    case ESHUTDOWN:
    case ECONNRESET:
    case ECONNREFUSED:
    case EHOSTDOWN:
    case EHOSTUNREACH:
    case ENETDOWN:
    case ENETUNREACH:
      return true;
    case ENOENT:
    case ENODEV:
    case ENXIO:
      return missing == Missing::kTransient;
    default:
      return false;
  }
}

bool try_again(const Retry& how, int tried, Error& error) {
  if (!is_transient(error.os_error, how.missing)) return false;
  if (tried >= how.tries) {
    if (how.tries > 1) error.message += fmt::format(" (tried {} times)", how.tries);
    return false;
  }
  const std::chrono::milliseconds pause = how.first_pause * (int64_t{1} << (tried - 1));
  log_warn("{}; trying again in {}", error.message, format_duration(std::chrono::duration<double>(pause).count()));
  std::this_thread::sleep_for(pause);
  return true;
}

}  // namespace tri
