// Shared by the programs of this folder: messages on stderr and exit statuses.
#pragma once

#include <cstdio>
#include <exception>

#include "io/base/error.h"

namespace tri {

// Returns the exit status of a program that runs `work()`, a Result<void>.
template <class Work>
int tool_status(Work work) {
  try {
    const Result<void> done = work();
    if (done) return 0;
    fmt::print(stderr, "{}\n", done.error().message);
    return static_cast<int>(done.error().code);
  } catch (const std::exception& problem) {
    fmt::print(stderr, "{}\n", problem.what());
    return 1;
  }
}

}  // namespace tri
