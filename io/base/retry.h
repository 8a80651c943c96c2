// Storage that fails for a while: which errors pass by themselves, and trying again with pauses in between.
#pragma once

#include <chrono>
#include <functional>
#include <type_traits>

#include "io/base/error.h"

namespace tri {

enum class Missing {
  kPermanent,  // a missing file stays missing
  kTransient,  // another process has seen it: the mount is not up yet
};

// Whether a failure may be gone at the next try, by errno.
//   passing   EIO: what network file systems say of a server that is away. A bad disk says it too, and goes on so: the
//             tries are few
//             ESTALE, ETIMEDOUT, EAGAIN, EREMOTEIO, ENOTCONN, ESHUTDOWN, ECONNRESET, ECONNREFUSED, EHOSTDOWN,
//             EHOSTUNREACH, ENETDOWN, ENETUNREACH: the server or the way to it
//             ENOENT, ENODEV, ENXIO: with Missing::kTransient
//   lasting   EACCES, EPERM, EROFS, ENOTDIR, ...: somebody has to put them right
//             ENOSPC, EDQUOT, EFBIG: until somebody makes room, which no pause of seconds brings
//             0, no system call failed: damaged contents stay damaged
bool is_transient(int os_error, Missing missing = Missing::kPermanent);

struct Retry {
  int tries = 5;                               // in all
  std::chrono::milliseconds first_pause{500};  // each pause is twice the one before: 7.5 s in all
  Missing missing = Missing::kPermanent;
  std::function<void(std::chrono::milliseconds)> pause;  // how to wait; none: this thread sleeps
};

// After try number `tried` (from 1) has failed: true when it was worth another, for which this has paused; a warning is
// logged then. When the tries are used up, `error` says how many they were.
bool try_again(const Retry& how, int tried, Error& error);

// What `act` returns, a Result, once it succeeds, fails for good, or the tries are used up.
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
