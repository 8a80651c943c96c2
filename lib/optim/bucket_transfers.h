// The transfers of buckets: a bucket is reduced and gathered over Bucket::sharded_over().
#pragma once

#include <vector>

#include "lib/comm/groups/axis_transfers.h"
#include "lib/optim/flat_layout.h"

namespace tri {

// The transfers of buckets that are reduced over these axes of kRowAxes, without axes of one rank.
struct ExpertTransfers {
  AxisSet axes;
  AxisTransfers* transfers = nullptr;
};

struct BucketTransfers {
  AxisSet axes;  // kBucketAxes without axes of one rank
  AxisTransfers& dp;
  std::vector<ExpertTransfers> experts = {};  // on the stream of `dp`

  // Returns the transfers of a bucket; null if no other rank of its axes holds its parameters.
  AxisTransfers* of(const Bucket& bucket) const {
    const AxisSet over = bucket.sharded_over();
    for (const ExpertTransfers& row : experts)
      if (row.axes == over) return row.transfers;
    TRI_REQUIRE(over == axes || over.empty(), "a bucket is sharded over {}, but transfers are over {}", to_string(over),
                to_string(axes));
    return over == axes ? &dp : nullptr;
  }
};

}  // namespace tri
