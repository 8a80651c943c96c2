// Links that go down and come back: whether the sender's retransmissions outlast it.
#pragma once

#include "lib/simulate/cluster.h"

namespace tri {

// Seconds after which an adapter sends a lost packet again: 4.096 us · 2^fabric.timeout_exponent (InfiniBand's local
// ACK timeout; adapters may take up to four times as long).
double retransmit_seconds(const ClusterFabric& fabric);

struct FlapOutcome {
  bool dies = false;   // the last retransmission is lost as well: the connection breaks, and the step with it
  double seconds = 0;  // for which the step stalls, at most until the connection breaks
};

// A link that is away for `away` seconds, from a moment at which a packet is lost on.
FlapOutcome flap(const ClusterFabric& fabric, double away);

// Of flaps with fabric.flap_s as the mean of exponential times.
struct FlapOdds {
  double dies = 0;           // the share that ends a step
  double stall_s = 0;        // the mean of the others
  double stall_s_a_day = 0;  // of a job with `links` links; fabric.flaps_per_link_day is 0: not known, 0
  double deaths_a_day = 0;   // the same
};
FlapOdds flap_odds(const ClusterFabric& fabric, int links);

}  // namespace tri
