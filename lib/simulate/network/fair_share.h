// How concurrent flows share the bandwidth of their links: two bounds for the effect of congestion.
#pragma once

#include <span>
#include <vector>

#include "lib/simulate/network/clos.h"

namespace tri {

struct FlowRates {
  std::vector<double> rate;     // [flow] bytes per second
  std::vector<int> bottleneck;  // [flow] index in its path of the link that limits it; 0 if `limit` does
};

// Returns the rates under max-min fairness, the goal of congestion control: no flow can get more unless a flow that has
// no more gets less. Every flow has at least one link and sends as fast as its links allow, but no faster than `limit`.
// `capacities`: [link] bytes per second.
FlowRates fair_share(std::span<const double> capacities, std::span<const Path> flows, double limit);

// Returns the other bound: priority flow control without congestion control. A congested link pauses the ports in front
// of it, and everything behind a paused port waits, so each flow there gets no more than the slowest flow that caused
// the pause. Starts from the fair share and lowers rates until nothing changes.
FlowRates head_of_line(std::span<const double> capacities, std::span<const Path> flows, double limit);

}  // namespace tri
