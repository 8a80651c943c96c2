#include "lib/simulate/collectives.h"

#include <algorithm>

namespace tri {

double RingTimes::seconds(const Transfer& transfer) const {
  if (transfer.ranks <= 1 || transfer.bytes <= 0) return 0;
  const ClusterNode& node = cluster_.node;
  const ClusterNetwork& network = cluster_.network;
  const int on_node = std::clamp(transfer.on_node, 1, transfer.ranks);
  const bool crosses = on_node < transfer.ranks;
  const double line = network.gb_per_s * network.share * 1e9, inside = node.gb_per_s * 1e9;
  if (transfer.kind == Collective::kMessage)
    return (node.start_us + (crosses ? network.latency_us : node.latency_us)) * 1e-6 +
           transfer.bytes / (crosses ? line : inside);
  const int steps = transfer.ranks - 1;
  const int crossing = crosses ? std::min(steps, (transfer.ranks + on_node - 1) / on_node) : 0;
  const double bandwidth = !crosses ? inside : on_node == 1 ? line : std::min(inside, on_node * line);
  const double ring = (crossing * network.latency_us + (steps - crossing) * node.latency_us) * 1e-6 +
                      transfer.bytes * steps / transfer.ranks / bandwidth;
  return node.start_us * 1e-6 + (transfer.kind == Collective::kAllReduce ? 2 * ring : ring);
}

int members_on_node(const Cluster& cluster, int stride, int size) {
  return std::clamp(cluster.node.ranks / stride, 1, size);
}

}  // namespace tri
