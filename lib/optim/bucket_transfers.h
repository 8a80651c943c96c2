// The transfers of buckets: a bucket is reduced and gathered over Bucket::sharded_over().
#pragma once

#include "lib/comm/groups/axis_transfers.h"
#include "lib/optim/flat_layout.h"

namespace tri {

struct BucketTransfers {
  AxisSet axes;  // kBucketAxes without axes of one rank
  AxisTransfers& dp;

  // Returns the transfers of a bucket. Null: no other rank of `dp` holds its parameters, so nothing is transferred.
  AxisTransfers* of(const Bucket& bucket) const {
    const AxisSet over = bucket.sharded_over();
    TRI_REQUIRE(over == axes || over.empty(), "a bucket is sharded over {}, but transfers are over {}", to_string(over),
                to_string(axes));
    return over == axes ? &dp : nullptr;
  }
};

}  // namespace tri
