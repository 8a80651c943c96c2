// Where the layers add gradients, and how the buckets of gradients are summed over dp. A counter a bucket starts its
// reduction on the dp stream when the last gradient of the pass is enqueued.
//   zero 0   all-reduce after the last microbatch
//   zero 1   reduce-scatter then, in place; this rank's slice is summed
//   zero 2   full gradients live in a small pool only while their bucket's backward runs; every microbatch is
//            reduce-scattered and added to this rank's slice
// As copies into the peers' memory where it can be opened (lib/comm/peer): alongside GEMMs that leave a collective's
// kernels no multiprocessor, or that those would slow down.
#pragma once

#include <memory>
#include <vector>

#include "kernels/elementwise.h"
#include "lib/comm/axis_transfers.h"
#include "lib/optim/parameter_memory.h"

namespace tri {

// out (n) is, or takes, the local block of the sum of the members' `full` (dp · n). out may be that block. `stream`
// does the sums, and has waited for all of it afterwards. f32.
void reduce_bucket(AxisTransfers& dp, SumInto into, Tensor out, Tensor full, Stream& stream);

// The group that sums over one axis: of tp its ranks, of pp the stages that hold a parameter together.
struct AxisGroup {
  AxisName axis;
  GroupOnStream* group;
};

struct GradientBucketsContext {
  const Config& config;
  const ParameterMemory& memory;
  int num_microbatches;  // of a step
  Device& device;
  Stream& compute;
  AxisTransfers& dp;
};

class GradientBuckets {
 public:
  explicit GradientBuckets(const GradientBucketsContext& context);
  ~GradientBuckets();

  void begin_step();  // gradients count as zero
  // From the next begin_step() on: StoreTensors::local_sumsq, at the price of one more read of the gradients.
  void sum_local_gradients(bool on) { sums_local_ = on; }

  // As the hooks of the same names (lib/model/parameter.h).
  void begin_backward(int chunk, int microbatch);
  Tensor gradient(const Parameter& parameter);
  ParameterHooks::GradientTarget gradient_target(const Parameter& parameter);
  void gradient_ready(const Parameter& parameter);

  // Enqueues what completes the slices' gradients after the last backward: the compute stream waits for the reductions
  // of the buckets, and gradients are summed over the axes that remain for them.
  void finish(const std::vector<AxisGroup>& groups);

 private:
  struct State;

  State& state_of(const Parameter& parameter);
  void open(State& state);
  void close(State& state);
  void reduce(State& state);

  const ParameterMemory& memory_;
  const int num_microbatches_;
  const bool grads_sharded_;  // zero 2
  Stream& compute_;
  AxisTransfers& dp_;
  std::vector<std::unique_ptr<State>> states_;      // [bucket]
  std::vector<std::unique_ptr<Event>> pool_freed_;  // [pool buffer]: its reduction is done
  std::vector<bool> pool_open_;                     // [pool buffer]: a bucket is being filled
  size_t pool_next_ = 0;
  bool sums_local_ = false;
};

}  // namespace tri
