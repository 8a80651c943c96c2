// The clocks of this process. A duration is a difference of monotonic times: the wall clock may be set at any moment,
// by NTP, by a person, or because a virtual machine was suspended.
#pragma once

namespace tri {

// Seconds of CLOCK_MONOTONIC.
double monotonic_seconds();

// Seconds since 1970 by the system's clock, now. For dates alone: log lines, expiry.
double wall_seconds();

// Seconds since 1970 as the system's clock had them when this process first asked, plus the monotonic time since then.
// Dates that are subtracted from each other later, such as those of metrics.jsonl and events.jsonl, are of this clock.
double process_wall_seconds();

}  // namespace tri
