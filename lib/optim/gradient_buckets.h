// Where the layers add gradients, and how the buckets of gradients are summed over dp. A counter per bucket starts its
// reduction on the dp stream when the last gradient is enqueued.
//   zero 0   all-reduce after the last microbatch
//   zero 1   reduce-scatter after the last microbatch, in place; this rank's slice is summed
//   zero 2   a bucket's full gradients live in a small pool, until as many gradients were added as a microbatch has;
//            then they are reduce-scattered and added to this rank's slice
// The transfers are copies into the peers' memory if it can be opened (lib/comm/peer): these overlap GEMMs that would
// leave no multiprocessor to a collective's kernels, or be slowed down by them.
//
// Threads: call only from the training thread; all work is enqueued.
#pragma once

#include <memory>
#include <vector>

#include "kernels/elementwise.h"
#include "lib/optim/bucket_transfers.h"
#include "lib/optim/parameter_memory.h"

namespace tri {

// out (n), f32, is overwritten with or added (`into`) the local block of the sum of the members' `full` (dp · n). out
// may be that block. `stream` computes the sums and then waits for the transfer. `dp` is null if there are
// no other members.
void reduce_bucket(AxisTransfers* dp, SumInto into, Tensor out, Tensor full, Stream& stream);

// A group that sums over one axis: over tp its ranks, over pp the stages that hold a parameter together.
struct AxisGroup {
  AxisName axis;
  GroupOnStream* group;
};

// Where each bucket's squares are summed as soon as its gradients are complete, if no other rank adds to them. Without
// a stream they are not.
struct LocalSums {
  Tensor sumsq;              // (S) f32: OptimizerTensors::sumsq
  Stream* stream = nullptr;  // not the compute stream
};

struct GradientBucketsContext {
  const Config& config;
  const ParameterMemory& memory;
  int num_microbatches;  // of a step
  Device& device;
  Stream& compute;
  BucketTransfers dp;
  LocalSums sums = {};
};

class GradientBuckets {
 public:
  explicit GradientBuckets(const GradientBucketsContext& context);
  ~GradientBuckets();

  void begin_step();  // sets the gradients to zero
  // Sets the microbatches of the following steps; at first those of the context.
  void set_microbatches(int count) { num_microbatches_ = count; }
  // From the next begin_step() on, computes StoreTensors::local_sumsq, which costs one more read of the gradients.
  void sum_local_gradients(bool on) { sums_local_ = on; }

  // The implementations of ParameterHooks (lib/model/parameter.h).
  Tensor gradient(const Parameter& parameter);
  ParameterHooks::GradientTarget gradient_target(const Parameter& parameter);
  void gradient_ready(const Parameter& parameter);

  // Completes the slices' gradients after the last backward action: the compute stream waits for the reductions of the
  // buckets, and gradients are summed over their remaining axes.
  void finish(const std::vector<AxisGroup>& groups);

  // Whether begin_step() has set the sums of squares to zero, and whether this step has added a bucket's to them.
  bool sums_squares() const { return sums_.stream != nullptr; }
  bool squared(int bucket) const;

 private:
  struct State;

  State& state_of(const Parameter& parameter);
  void open(State& state);
  void close(State& state);
  void reduce(State& state, bool is_last);
  void square(State& state);

  const ParameterMemory& memory_;
  int num_microbatches_;
  const bool grads_sharded_;  // zero 2
  Stream& compute_;
  const BucketTransfers transfers_;
  AxisTransfers& dp_;  // of transfers_
  const LocalSums sums_;
  std::unique_ptr<Event> squares_done_;
  std::vector<std::unique_ptr<State>> states_;      // [bucket]
  std::vector<std::unique_ptr<Event>> pool_freed_;  // [pool buffer]: its reduction is done
  std::vector<bool> pool_open_;                     // [pool buffer]: a bucket is being filled
  size_t pool_next_ = 0;
  bool sums_local_ = false;
};

}  // namespace tri
