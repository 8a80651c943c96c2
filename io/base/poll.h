// Waiting for something that cannot wake this thread, such as a file or another process.
#pragma once

#include <algorithm>
#include <chrono>
#include <thread>
#include <utility>

namespace tri {

// Calls `done` until it returns true or `timeout` has passed; returns whether it did. Calls it at least once. Sleeps in
// between, first for `pause`, then each time for twice as long, up to `longest`.
template <class Done>
bool poll_for(std::chrono::duration<double> timeout, std::chrono::milliseconds pause, std::chrono::milliseconds longest,
              Done done) {
  const auto begin = std::chrono::steady_clock::now();
  while (!done()) {
    if (std::chrono::steady_clock::now() - begin >= timeout) return false;
    std::this_thread::sleep_for(pause);
    pause = std::min(2 * pause, longest);
  }
  return true;
}

// The same with equal pauses.
template <class Done>
bool poll_for(std::chrono::duration<double> timeout, std::chrono::milliseconds pause, Done done) {
  return poll_for(timeout, pause, pause, std::move(done));
}

}  // namespace tri
