// How the clocks of a job's hosts stand to each other.
#pragma once

#include <cstdint>

namespace tri {

class Job;

// To add to this host's CLOCK_MONOTONIC for that of world rank 0's host, and how far that may be wrong, nanoseconds.
// All ranks of a host share a clock, so on rank 0's both are 0.
struct ClockOffset {
  int64_t offset = 0, error = 0;
};

// Collective. `leader`: the rank that asks rank 0 for the time on behalf of this one's host (Job::node_ranks()), some
// times over; the fastest answer counts, and the error is half of what that took.
ClockOffset measure_clock_offset(Job& job, int leader);

}  // namespace tri
