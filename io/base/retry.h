// Transient failures of storage: which errors are transient, and retries with pauses.
#pragma once

#include <chrono>
#include <type_traits>

#include "io/base/error.h"

namespace tri {

enum class Missing {
  kPermanent,  // a missing file stays missing
  kTransient,  // another process has seen it, so the mount is not up yet
};

// Returns whether a failure may be gone at the next try, by errno.
//   transient  EIO: network file systems report it for an absent server. A bad disk reports it too, and persistently:
//              so the tries are few
//              ESTALE, ETIMEDOUT, EAGAIN, EREMOTEIO, ENOTCONN, ESHUTDOWN, ECONNRESET, ECONNREFUSED, EHOSTDOWN,
//              EHOSTUNREACH, ENETDOWN, ENETUNREACH: the server or the network to it
//              ENOENT, ENODEV, ENXIO: with Missing::kTransient
//   permanent  EACCES, EPERM, EROFS, ENOTDIR, ...: a person must fix them
//              ENOSPC, EDQUOT, EFBIG: a person must free space, which takes longer than the pauses
//              0, no system call failed: damaged contents stay damaged
bool is_transient(int os_error, Missing missing = Missing::kPermanent);

struct Retry {
  int tries = 5;                               // in total
  std::chrono::milliseconds first_pause{500};  // each pause is twice the previous one: 7.5 s in total
  Missing missing = Missing::kPermanent;
};

// Call after try number `tried` (from 1) has failed. If the error is transient and tries are left, logs a warning,
// pauses and returns true. When the tries are used up, adds their number to `error`.
bool try_again(const Retry& how, int tried, Error& error);

// Returns the Result of `act`, retried until it succeeds, fails permanently, or the tries are used up.
template <class Act>
std::invoke_result_t<Act> retried(const Retry& how, Act&& act) {
  for (int tried = 1;; ++tried) {
    auto result = act();
    if (result) return result;
    Error error = result.error();
    if (!try_again(how, tried, error)) return error;
  }
}

}  // namespace tri
