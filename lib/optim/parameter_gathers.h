// How parameters follow the master weights, and how every dp rank gets those that the others updated: each bucket's
// slices are gathered over dp after their update, and the compute stream waits for a bucket just before its first use.
#pragma once

#include "lib/comm/axis_transfers.h"
#include "lib/optim/parameter_memory.h"

namespace tri {

struct ParameterGathersContext {
  const ParameterMemory& memory;
  Stream& compute;
  AxisTransfers& dp;
};

class ParameterGathers {
 public:
  explicit ParameterGathers(const ParameterGathersContext& context);

  // After a slice's update was enqueued: gathers its bucket over dp.
  void publish(const BucketSlice& slice);
  // The compute stream is about to read the parameter: it waits for its bucket.
  void before_use(const Parameter& parameter);

  // After master weights and moments were overwritten, each by the dp rank that owns it: completes those of the other
  // dp ranks (zero 0), and the parameters, except those that are kept in FP8.
  void state_loaded();
  // Casts the master weights of this rank's slices to FP8, with the current scales.
  void cast_weights();
  // Gathers the buckets of FP8 weights over dp.
  void publish_weights();

 private:
  void complete_state();

  const ParameterMemory& memory_;
  Stream& compute_;
  AxisTransfers& dp_;
};

}  // namespace tri
