// The clocks of this process. A duration is a difference of monotonic times: the wall clock may be set at any moment,
// by NTP, by a person, or because a virtual machine was suspended.
#pragma once

#include <chrono>

namespace tri {

// Seconds of CLOCK_MONOTONIC.
double monotonic_seconds();

// A duration in seconds, between two moments of the monotonic clock and until now.
inline double seconds_between(std::chrono::steady_clock::time_point from, std::chrono::steady_clock::time_point to) {
  return std::chrono::duration<double>(to - from).count();
}
inline double seconds_since(std::chrono::steady_clock::time_point start) {
  return seconds_between(start, std::chrono::steady_clock::now());
}

// Seconds since 1970 by the system's clock, now. For dates alone: log lines, expiry.
double wall_seconds();

// Seconds since 1970 as the system's clock had them when this process first asked, plus the monotonic time since then.
// Dates that are subtracted from each other later, such as those of metrics.jsonl and events.jsonl, are of this clock.
double process_wall_seconds();

}  // namespace tri
