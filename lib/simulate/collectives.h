// How long transfers between ranks take: the interface through which the model of a step gets these times.
#pragma once

#include "io/base/enum_names.h"
#include "lib/simulate/cluster.h"

namespace tri {

enum class Collective { kAllGather, kReduceScatter, kAllReduce, kMessage, kAllToAll };
enum class TransferAxis { kTp, kCp, kEp, kPp, kDp };

template <>
struct EnumNames<TransferAxis> {
  static constexpr std::array table{
      std::pair{TransferAxis::kTp, std::string_view("tp")}, std::pair{TransferAxis::kCp, std::string_view("cp")},
      std::pair{TransferAxis::kEp, std::string_view("ep")}, std::pair{TransferAxis::kPp, std::string_view("pp")},
      std::pair{TransferAxis::kDp, std::string_view("dp")}};
};

struct Transfer {
  Collective kind{};
  double bytes = 0;  // of the whole gathered or reduced buffer, of the message, or of what a rank has for all members
  int ranks = 1;     // of the group
  int on_node = 1;   // members on one machine
  TransferAxis axis = TransferAxis::kDp;
};

class TransferTimes {
 public:
  virtual ~TransferTimes() = default;
  virtual double seconds(const Transfer& transfer) const = 0;  // from the last member's start to the end, without other
                                                               // traffic
};

// Ring collectives. T = start + steps · latency + bytes · (n - 1) / n / bandwidth, twice that for an all-reduce. Of the
// n - 1 steps, those that cross machines have the network's latency. A machine with k members of the group has k
// adapters for its ring. If ranks share adapters, dp's groups with several ranks on a machine share one of them: on
// vTrain's machines their rates add up to that of one, while tp over machines gets all (configs/published).
// An all-to-all sends a rank's shares for members on other machines through its adapter, while those for its own
// machine go inside it; messages to all of them start at once.
class RingTimes : public TransferTimes {
 public:
  explicit RingTimes(const Cluster& cluster) : cluster_(cluster) {}
  double seconds(const Transfer& transfer) const override;

 private:
  const Cluster& cluster_;
};

// Returns a rank's share of the line rate of its machine's adapters.
double rank_gb_per_s(const Cluster& cluster);

// Returns how many members of a group of `size` ranks, `stride` apart, share a machine.
int members_on_node(const Cluster& cluster, int stride, int size);

}  // namespace tri
