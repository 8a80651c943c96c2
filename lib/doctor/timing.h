// Measures how long work takes when undisturbed, since other processes only add time.
#pragma once

#include <algorithm>
#include <chrono>
#include <functional>
#include <limits>

#include "io/base/clock.h"
#include "kernels/core/device.h"

namespace tri {

inline double seconds_of(const std::function<void()>& run) {
  const auto begin = std::chrono::steady_clock::now();
  run();
  return seconds_since(begin);
}

// Returns the seconds of the fastest of `rounds` runs.
inline double best_seconds(int rounds, const std::function<void()>& run) {
  double best = std::numeric_limits<double>::infinity();
  for (int round = 0; round < rounds; ++round) best = std::min(best, seconds_of(run));
  return best;
}

// The same for the work that `enqueue` adds to the stream, by the stream's own clock, after an uncounted run.
inline double best_seconds_on(Stream& stream, Device& device, int rounds, const std::function<void()>& enqueue) {
  const auto begin = device.make_event(EventKind::kTimed), end = device.make_event(EventKind::kTimed);
  double best = std::numeric_limits<double>::infinity();
  for (int round = -1; round < rounds; ++round) {
    stream.record(*begin);
    enqueue();
    stream.record(*end);
    stream.synchronize();
    if (round >= 0) best = std::min(best, end->seconds_after(*begin));
  }
  return best;
}

}  // namespace tri
