// How much of their links' bandwidth flows get that run at the same time: two bounds of what congestion does.
#pragma once

#include <span>
#include <vector>

#include "lib/simulate/network/clos.h"

namespace tri {

struct FlowRates {
  std::vector<double> rate;     // [flow] bytes a second
  std::vector<int> bottleneck;  // [flow] place in its path of the link that holds it back; 0 where `limit` does
};

// Max-min fairness, what congestion control strives for: no flow can get more unless one that has no more than it gets
// less. Every flow sends as fast as its links let it, and has one at least, but no faster than `limit`. `capacities`:
// [link] bytes a second.
FlowRates fair_share(std::span<const double> capacities, std::span<const Path> flows, double limit);

// The other bound, priority flow control without congestion control: a link that is held back pauses the ports in front
// of it, and all that is behind a paused port waits: each of its flows gets no more than the slowest of those that the
// pause is for. From the fair share downwards, until nothing changes.
FlowRates head_of_line(std::span<const double> capacities, std::span<const Path> flows, double limit);

}  // namespace tri
