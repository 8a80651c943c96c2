#include "lib/simulate/network/algorithms.h"

#include <algorithm>
#include <array>
#include <cmath>

namespace tri {
namespace {

// NCCL's table in microseconds, for LL, LL128 and Simple. The values inside a machine are NVLink's.
struct Latencies {
  std::array<double, 3> start, inside, network;
};
constexpr Latencies kRing{{6.6, 14.0, 8.4}, {0.6, 1.9, 3.4}, {2.7, 4.0, 14.0}};
constexpr Latencies kTree{{6.8, 14.0, 8.4}, {0.6, 1.25, 4.0}, {5.0, 8.5, 14.0}};
constexpr size_t kSimple = static_cast<size_t>(Protocol::kSimple);
constexpr double kPatLinear = 2.8;       // microseconds per rank
constexpr double kPatLatency = 1 / 3.5;  // per step, relative to a ring's step
constexpr double kPatBandwidth = 0.75, kTreeBandwidth = 0.92;
constexpr double kPlateau = 1.9;

// The share of Simple's bandwidth. Across machines LL reaches a tenth of the bandwidth inside one: 19 of 188 GB/s on
// A100.
double bandwidth_share(CollectiveAlgorithm algorithm, Protocol protocol, bool crosses) {
  const bool tree = algorithm == CollectiveAlgorithm::kTree;
  const double base = tree ? kTreeBandwidth : 1;
  switch (protocol) {
    case Protocol::kLL:
      return tree ? base / 3.8 : crosses ? 0.1 : 0.5;
    case Protocol::kLL128:
      return tree ? base * (crosses ? 120.0 / 128 : 7.0 / 9) : 0.92;
    case Protocol::kSimple:
      break;
  }
  return base;
}

class Algorithms {
 public:
  Algorithms(const Cluster& c, const Transfer& t, double share)
      : c_(c), t_(t), k_(std::clamp(t.on_node, 1, t.ranks)), nodes_((t.ranks + k_ - 1) / k_) {
    inside_ = c.node.gb_per_s * 1e9;
    line_ = c.network.gb_per_s * c.network.share * 1e9 * share;
    bandwidth_ = nodes_ == 1 ? inside_ : k_ == 1 ? line_ : std::min(inside_, k_ * line_);
  }

  AlgorithmTime ring(Protocol protocol) const {
    const double passes = reduces_all() ? 2 : 1;
    const int steps = t_.ranks - 1, crossing = nodes_ > 1 ? std::min(steps, nodes_) : 0;
    double latency =
        passes * (crossing * network_step(kRing, protocol) + (steps - crossing) * inside_step(kRing, protocol));
    if (reduces_all() && nodes_ > 1 && protocol == Protocol::kSimple && t_.bytes >= 65536.0 * 16 * t_.ranks)
      latency *= kPlateau;
    const double rate = bandwidth_ * bandwidth_share(CollectiveAlgorithm::kRing, protocol, nodes_ > 1);
    return {CollectiveAlgorithm::kRing, protocol, start(kRing, protocol) + latency,
            passes * t_.bytes * steps / t_.ranks / rate};
  }

  // Up and down a binary tree of machines, and along a chain inside each machine.
  AlgorithmTime tree(Protocol protocol) const {
    const double latency =
        2 * ((k_ - 1) * inside_step(kTree, protocol) + std::floor(std::log2(nodes_)) * network_step(kTree, protocol));
    const double rate = bandwidth_ * bandwidth_share(CollectiveAlgorithm::kTree, protocol, nodes_ > 1);
    return {CollectiveAlgorithm::kTree, protocol, start(kTree, protocol) + latency, 2 * t_.bytes / rate};
  }

  AlgorithmTime pat() const {
    const double latency = std::floor(std::log2(nodes_)) * network_step(kRing, Protocol::kSimple) * kPatLatency +
                           t_.ranks * kPatLinear * 1e-6;
    return {CollectiveAlgorithm::kPat, Protocol::kSimple, start(kRing, Protocol::kSimple) + latency,
            t_.bytes * (t_.ranks - 1) / t_.ranks / (bandwidth_ * kPatBandwidth)};
  }

  // A ring inside each machine, then k parallel rings between the machines' members, each with its k-th part.
  AlgorithmTime hierarchical() const {
    const double passes = reduces_all() ? 2 : 1;
    const double latency = passes * ((k_ - 1) * inside_step(kRing, Protocol::kSimple) +
                                     (nodes_ - 1) * network_step(kRing, Protocol::kSimple));
    const double moving = passes * t_.bytes * ((k_ - 1.0) / k_ / inside_ + (nodes_ - 1.0) / nodes_ / k_ / line_);
    return {CollectiveAlgorithm::kHierarchical, Protocol::kSimple, 2 * start(kRing, Protocol::kSimple) + latency,
            moving};
  }

  bool reduces_all() const { return t_.kind == Collective::kAllReduce; }
  int on_node() const { return k_; }
  int nodes() const { return nodes_; }

 private:
  // The cluster file's constants are those of a ring with the Simple protocol.
  static double scaled(double constant_us, double of_table, double of_ring) {
    return constant_us * 1e-6 * of_table / of_ring;
  }
  double start(const Latencies& table, Protocol p) const {
    return scaled(c_.node.start_us, table.start[static_cast<size_t>(p)], kRing.start[kSimple]);
  }
  double inside_step(const Latencies& table, Protocol p) const {
    return scaled(c_.node.latency_us, table.inside[static_cast<size_t>(p)], kRing.inside[kSimple]);
  }
  double network_step(const Latencies& table, Protocol p) const {
    return scaled(c_.network.latency_us, table.network[static_cast<size_t>(p)], kRing.network[kSimple]);
  }

  const Cluster& c_;
  const Transfer& t_;
  int k_, nodes_;  // members per machine, machines
  double inside_ = 0, line_ = 0, bandwidth_ = 0;
};

}  // namespace

std::vector<AlgorithmTime> algorithm_times(const Cluster& cluster, const Transfer& transfer, double network_share) {
  std::vector<AlgorithmTime> times;
  if (transfer.ranks <= 1 || transfer.bytes <= 0 || transfer.kind == Collective::kMessage) return times;
  const Algorithms algorithms(cluster, transfer, network_share);
  for (const Protocol protocol : {Protocol::kLL, Protocol::kLL128, Protocol::kSimple}) {
    if (protocol != Protocol::kSimple && !cluster.fabric.quick_protocols) continue;
    times.push_back(algorithms.ring(protocol));
    if (algorithms.reduces_all()) times.push_back(algorithms.tree(protocol));
  }
  const bool across = algorithms.nodes() > 1;
  if (cluster.fabric.pat && across && algorithms.on_node() == 1 && !algorithms.reduces_all())
    times.push_back(algorithms.pat());
  if (cluster.fabric.hierarchical && across && algorithms.on_node() > 1) times.push_back(algorithms.hierarchical());
  std::ranges::stable_sort(times, {}, &AlgorithmTime::total);
  return times;
}

double NetworkTimes::seconds(const Transfer& transfer) const {
  if (transfer.ranks <= 1 || transfer.bytes <= 0) return 0;
  const double share = shares_.of(transfer.axis);
  if (transfer.kind != Collective::kMessage) return algorithm_times(cluster_, transfer, share).front().total();
  if (transfer.on_node > 1) return RingTimes(cluster_).seconds(transfer);
  Cluster shared;
  shared.node = cluster_.node;
  shared.network = cluster_.network;
  shared.network.share *= share;
  return RingTimes(shared).seconds(transfer);
}

}  // namespace tri
