// Updates the parameters of all dp ranks after the master weights: each bucket's slices are gathered over dp after
// their update, and the compute stream waits for a bucket just before its first use.
//
// Threads: call only from the rank's main thread. Publishing and loading are collective over dp.
#pragma once

#include "lib/optim/bucket_transfers.h"
#include "lib/optim/parameter_memory.h"

namespace tri {

struct ParameterGathersContext {
  const ParameterMemory& memory;
  Stream& compute;
  BucketTransfers dp;
};

class ParameterGathers {
 public:
  explicit ParameterGathers(const ParameterGathersContext& context);

  // Gathers a slice's bucket over dp, after the slice's update was enqueued.
  void publish(const BucketSlice& slice);
  // Call before the compute stream reads the parameter: makes it wait for the parameter's bucket.
  void before_use(const Parameter& parameter);

  // Call after each dp rank has overwritten its own master weights, their average and moments: completes those of the
  // other dp ranks (zero 0), and the parameters, except those stored in FP8.
  void state_loaded();
  // Casts the master weights of this rank's slices to FP8, with the current scales.
  void cast_weights();
  // Gathers the buckets of FP8 weights over dp.
  void publish_weights();

 private:
  void complete_state();

  const ParameterMemory& memory_;
  Stream& compute_;
  const BucketTransfers transfers_;
  AxisTransfers& dp_;  // of transfers_
};

}  // namespace tri
