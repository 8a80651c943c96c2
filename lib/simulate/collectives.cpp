#include "lib/simulate/collectives.h"

#include <algorithm>

namespace tri {

namespace {

bool shares_adapters(const ClusterNode& node) { return node.adapters > 0 && node.adapters < node.ranks; }

}  // namespace

double rank_gb_per_s(const Cluster& cluster) {
  const ClusterNode& node = cluster.node;
  return cluster.network.gb_per_s * (shares_adapters(node) ? static_cast<double>(node.adapters) / node.ranks : 1);
}

double RingTimes::seconds(const Transfer& transfer) const {
  if (transfer.ranks <= 1 || transfer.bytes <= 0) return 0;
  const ClusterNode& node = cluster_.node;
  const ClusterNetwork& network = cluster_.network;
  const int on_node = std::clamp(transfer.on_node, 1, transfer.ranks);
  const bool crosses = on_node < transfer.ranks;
  const double line = rank_gb_per_s(cluster_) * network.share * 1e9, inside = node.gb_per_s * 1e9;
  if (transfer.kind == Collective::kMessage)
    return (node.start_us + (crosses ? network.latency_us : node.latency_us)) * 1e-6 +
           transfer.bytes / (crosses ? line : inside);
  if (transfer.kind == Collective::kAllToAll) {
    const double share = transfer.bytes / transfer.ranks;  // for one member
    return (node.start_us + (crosses ? network.latency_us : node.latency_us)) * 1e-6 +
           std::max((on_node - 1) * share / inside, (transfer.ranks - on_node) * share / line);
  }
  const int steps = transfer.ranks - 1;
  const int crossing = crosses ? std::min(steps, (transfer.ranks + on_node - 1) / on_node) : 0;
  const bool one_adapter = shares_adapters(node) && transfer.axis == TransferAxis::kDp;
  const double ring_line = one_adapter ? on_node * line / node.adapters : on_node * line;
  const double bandwidth = !crosses ? inside : on_node == 1 ? line : std::min(inside, ring_line);
  const double ring = (crossing * network.latency_us + (steps - crossing) * node.latency_us) * 1e-6 +
                      transfer.bytes * steps / transfer.ranks / bandwidth;
  return node.start_us * 1e-6 + (transfer.kind == Collective::kAllReduce ? 2 * ring : ring);
}

int members_on_node(const Cluster& cluster, int stride, int size) {
  return std::clamp(cluster.node.ranks / stride, 1, size);
}

}  // namespace tri
