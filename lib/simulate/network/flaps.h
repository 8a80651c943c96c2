// Links that go down and come back: whether the sender's retransmissions last until then.
#pragma once

#include "lib/simulate/cluster.h"

namespace tri {

// Returns the seconds after which an adapter retransmits a lost packet: 4.096 us · 2^fabric.timeout_exponent
// (InfiniBand's local ACK timeout; adapters may take up to four times as long).
double retransmit_seconds(const ClusterFabric& fabric);

// Statistics of flaps with exponential durations of mean fabric.flap_s, each starting when a packet is lost. If the
// last retransmission is lost too, the connection breaks and ends the step.
struct FlapOdds {
  double dies = 0;           // the share of flaps that end a step
  double stall_s = 0;        // the mean of the other flaps
  double stall_s_a_day = 0;  // for a job with `links` links; 0 if fabric.flaps_per_link_day is 0, which means unknown
  double deaths_a_day = 0;   // for the same job
};
FlapOdds flap_odds(const ClusterFabric& fabric, int links);

}  // namespace tri
