// Times of collectives by algorithm and protocol, from which NCCL's own tuning chooses: T = start + steps · latency +
// bytes / bandwidth. The ratios of NCCL's latencies come from its table (src/graph/tuning.cc, 2.23); the absolute
// latency of a ring and the line rates come from the cluster file.
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

// Flags alongside the data (LL, LL128: low latency, lower bandwidth), or a wait for whole chunks (Simple).
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

// Returns every way to run this collective, the fastest first. `network_share`: the share of the adapters' line rate
// that its connections get. The ring with Simple equals RingTimes, except for the all-reduce between machines, whose
// steps take 1.9 times as long once the pipeline of chunks is full (NCCL's "plateau").
std::vector<AlgorithmTime> algorithm_times(const Cluster& cluster, const Transfer& transfer, double network_share);

// Each collective uses its fastest algorithm; axes get their shares of the adapters' line rate.
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
