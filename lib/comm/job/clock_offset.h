// The offsets between the clocks of a job's hosts.
#pragma once

#include <cstdint>

namespace tri {

class Job;

// The offset to add to this host's CLOCK_MONOTONIC to get that of world rank 0's host, and its greatest error, in
// nanoseconds. All ranks of a host share a clock, so on rank 0's host both are 0.
struct ClockOffset {
  int64_t offset = 0, error = 0;
};

// Measures the offset. `leader` is the rank that queries rank 0's clock for this host (Job::node_ranks()), several
// times; the fastest answer counts, and the error is half its round trip. Collective.
ClockOffset measure_clock_offset(Job& job, int leader);

}  // namespace tri
