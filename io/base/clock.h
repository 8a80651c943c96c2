// The clocks of this process. Measure durations as differences of monotonic times: the wall clock may be set at any
// moment, by NTP, by a person, or because a virtual machine was suspended. Safe for concurrent use.
#pragma once

#include <chrono>

namespace tri {

// Returns seconds of CLOCK_MONOTONIC.
double monotonic_seconds();

// Return the seconds between two moments of the monotonic clock, and from one until now.
inline double seconds_between(std::chrono::steady_clock::time_point from, std::chrono::steady_clock::time_point to) {
  return std::chrono::duration<double>(to - from).count();
}
inline double seconds_since(std::chrono::steady_clock::time_point start) {
  return seconds_between(start, std::chrono::steady_clock::now());
}

// Returns seconds since 1970 by the system's clock. Use it for dates only: log lines, expiry.
double wall_seconds();

// Returns the seconds since 1970 that the system's clock showed at this process's first call, plus the monotonic time
// since then. Use it for dates that are subtracted from each other later, such as those of metrics.jsonl and
// events.jsonl.
double process_wall_seconds();

}  // namespace tri
