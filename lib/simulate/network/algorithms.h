// Collectives by algorithm and protocol, as NCCL's own tuning chooses among them: T = start + steps · latency +
// bytes / bandwidth. How NCCL's latencies stand to each other is its table's (src/graph/tuning.cc, 2.23); how long one
// of a ring is, and the line rates, are the cluster file's.
#pragma once

#include <array>
#include <vector>

#include "lib/simulate/collectives.h"

namespace tri {

enum class CollectiveAlgorithm { kRing, kTree, kPat, kHierarchical };

template <>
struct EnumNames<CollectiveAlgorithm> {
  static constexpr std::array table{std::pair{CollectiveAlgorithm::kRing, std::string_view("ring")},
                                    std::pair{CollectiveAlgorithm::kTree, std::string_view("tree")},
                                    std::pair{CollectiveAlgorithm::kPat, std::string_view("PAT")},
                                    std::pair{CollectiveAlgorithm::kHierarchical, std::string_view("hierarchical")}};
};

// Flags alongside the data (LL, LL128: quick, of less bandwidth), or a wait for whole chunks (Simple).
enum class Protocol { kLL, kLL128, kSimple };

template <>
struct EnumNames<Protocol> {
  static constexpr std::array table{std::pair{Protocol::kLL, std::string_view("LL")},
                                    std::pair{Protocol::kLL128, std::string_view("LL128")},
                                    std::pair{Protocol::kSimple, std::string_view("Simple")}};
};

struct AlgorithmTime {
  CollectiveAlgorithm algorithm{};
  Protocol protocol{};
  double latency = 0, moving = 0;  // seconds

  double total() const { return latency + moving; }
};

// Every way in which this collective may run, the quickest first. `network_share`: of the adapters' line rate that its
// connections get. The ring with Simple is RingTimes' except for the all-reduce between machines, whose steps last 1.9
// times as long once the pipeline of chunks is full (NCCL's "plateau").
std::vector<AlgorithmTime> algorithm_times(const Cluster& cluster, const Transfer& transfer, double network_share);

// Each collective by its quickest algorithm; axes get their shares of the adapters' line rate.
class NetworkTimes : public TransferTimes {
 public:
  struct Shares {
    std::array<double, EnumNames<TransferAxis>::table.size()> values;  // [TransferAxis]
    Shares() { values.fill(1); }
    double& of(TransferAxis axis) { return values[static_cast<size_t>(axis)]; }
    double of(TransferAxis axis) const { return values[static_cast<size_t>(axis)]; }
  };

  NetworkTimes(const Cluster& cluster, const Shares& shares) : cluster_(cluster), shares_(shares) {}
  double seconds(const Transfer& transfer) const override;

 private:
  const Cluster& cluster_;
  Shares shares_;
};

}  // namespace tri
