// How every dp rank gets the parameters that the others updated: each bucket's slices are gathered over dp after their
// update, and the compute stream waits for a bucket just before its first use.
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

  // Zero 0, after each dp rank's share of master weights and moments was overwritten: all ranks get all of them.
  void complete_state();

 private:
  const ParameterMemory& memory_;
  Stream& compute_;
  AxisTransfers& dp_;
};

}  // namespace tri
