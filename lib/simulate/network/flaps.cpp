#include "lib/simulate/network/flaps.h"

#include <cmath>

namespace tri {

double retransmit_seconds(const ClusterFabric& fabric) { return 4.096e-6 * std::exp2(fabric.timeout_exponent); }

// The time X of a flap is exponential with mean f. With q = exp(-timeout / f), attempt k = 1 ... n is the first one to
// find the link up with probability q^(k-1) · (1 - q); all attempts fail with probability q^n.
FlapOdds flap_odds(const ClusterFabric& fabric, int links) {
  const double timeout = retransmit_seconds(fabric), q = std::exp(-timeout / fabric.flap_s);
  FlapOdds odds{.dies = std::pow(q, fabric.retry_count)};
  double sum = 0;
  for (int k = 1; k <= fabric.retry_count; ++k) sum += k * timeout * std::pow(q, k - 1) * (1 - q);
  if (odds.dies < 1) odds.stall_s = sum / (1 - odds.dies);
  const double flaps = fabric.flaps_per_link_day * links;
  odds.stall_s_a_day = flaps * sum;
  odds.deaths_a_day = flaps * odds.dies;
  return odds;
}

}  // namespace tri
