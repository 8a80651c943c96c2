// How long transfers between ranks take, for the model of a step. The model asks through this interface alone.
#pragma once

#include "lib/simulate/cluster.h"

namespace tri {

enum class Collective { kAllGather, kReduceScatter, kAllReduce, kMessage };

struct Transfer {
  Collective kind{};
  double bytes = 0;  // of the whole buffer: what is gathered, what is reduced; of a message its own
  int ranks = 1;     // of the group
  int on_node = 1;   // of them on one machine
};

class TransferTimes {
 public:
  virtual ~TransferTimes() = default;
  virtual double seconds(const Transfer& transfer) const = 0;  // from the last member's start to the end; alone
};

// Rings. T = start + steps · latency + bytes · (n - 1) / n / bandwidth, an all-reduce twice that. Of n - 1 steps
// those that cross machines take the network's latency. A machine that holds k members of the group has k adapters
// for its ring.
class RingTimes : public TransferTimes {
 public:
  explicit RingTimes(const Cluster& cluster) : cluster_(cluster) {}
  double seconds(const Transfer& transfer) const override;

 private:
  const Cluster& cluster_;
};

}  // namespace tri
