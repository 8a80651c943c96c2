// Updates the parameters of all dp ranks after the master weights: each bucket's slices are gathered over dp after
// their update, and the compute stream waits for a bucket just before its first use. If updates overlap with the next
// forward pass, the waits are for the updates themselves.
//
// Threads: call only from the training thread. Publishing and loading are collective over dp.
#pragma once

#include <memory>
#include <vector>

#include "lib/optim/bucket_transfers.h"
#include "lib/optim/parameter_memory.h"

namespace tri {

struct ParameterGathersContext {
  const ParameterMemory& memory;
  Device& device;
  Stream& compute;
  BucketTransfers dp;
};

class ParameterGathers {
 public:
  explicit ParameterGathers(const ParameterGathersContext& context);

  // Gathers a slice's bucket over dp, after the slice's update was enqueued on `stream`: the compute stream, or without
  // such gathers another one (may_overlap_updates).
  void publish(const BucketSlice& slice, Stream& stream);
  // Call after all work of an update was enqueued on a stream other than the compute stream.
  void end_of_updates(Stream& stream);
  // Make the compute stream wait for updates on another stream: for those of the buckets to whose gradients kernels
  // add from the start, which are set to zero at first; and for all.
  void before_zeroing();
  void finish_updates();
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
  void wait_for_update(size_t bucket);

  const ParameterMemory& memory_;
  Stream& compute_;
  const BucketTransfers transfers_;
  AxisTransfers& dp_;  // of transfers_
  // Of updates on another stream: that of each bucket, and all.
  std::vector<std::unique_ptr<Event>> updated_;
  std::unique_ptr<Event> all_updated_;
  std::vector<bool> awaited_;  // [bucket]: the compute stream has to wait for the update
  size_t num_awaited_ = 0;
  bool is_open_ = false;  // between end_of_updates() and finish_updates()
};

}  // namespace tri
