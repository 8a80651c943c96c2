// The flat memory of a rank's parameters and gradients, and their dp traffic.
//
// Gradients: a ready-counter a bucket starts its reduction on the dp channel when the last gradient of the pass is
// enqueued. zero 0: all-reduce after the last microbatch. zero 1: reduce-scatter then, in place; this rank's slice is
// summed. zero 2: whole gradients live in a small pool only while their bucket's backward runs; every microbatch is
// reduce-scattered and added to this rank's slice.
// Parameters: after the update each bucket's slices are all-gathered on the dp channel, and the compute stream waits
// for a bucket just before its first use.
// Both as copies into the peers' memory where it can be opened: beside products that leave a collective's kernels no
// multiprocessor, or that those would slow down.
//
// A slice is this rank's part of a bucket: all of it (zero 0), or 1/dp.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "kernels/core/arena.h"
#include "lib/comm/comm_group.h"
#include "lib/comm/row_exchange.h"
#include "lib/optim/flat_layout.h"

namespace tri {

struct ChunkStoreTensors {
  FlatLayout layout;
  Tensor parameters;              // (size) compute dtype
  Tensor gradients;               // (size) f32; zero 2: (size / dp), the slices
  Tensor master;                  // (slices) f32 master weights; bf16 only
  Tensor exp_avg;                 // (slices) f32
  Tensor exp_avg_sq;              // (slices) f32
  Tensor block_tensor;            // (size / kBlock) i32: index of the owning tensor in the rank's numbering, -1 padding
  std::vector<Tensor> dedicated;  // zero 2, [bucket]: whole gradients of buckets that stay open for a whole pass
};

struct StoreTensors {
  std::vector<ChunkStoreTensors> chunks;
  std::vector<Tensor> pool;  // zero 2: whole gradients of a bucket, taken in turn
  Tensor decay;              // (S) f32: weight decay of each tensor; below 0: neither decay nor trust ratio
  Tensor count_weight;       // (S) f32: 1 where this rank's slice counts in the global norm, else 0
  Tensor local_sumsq;        // (S) f32: squares of this rank's own gradients, where a reduction follows, if asked for
  RowExchangeTensors exchange;  // dp > 1 and zero >= 1, where copies_dp_buckets
  int num_tensors = 0;          // S
  int num_split_tensors = 0;    // the first ones: divided over tp; the rest is whole on every tp rank
};

// Whether buckets are copied into dp peers' memory, if that can be opened; else they go through collectives.
bool copies_dp_buckets(const Config& config);

// out (n) = the own block of the sum of the members' `whole` (dp · n), or is added to; n a multiple of kBlock. `stream`
// does the sums, and has waited for all of it afterwards.
void reduce_bucket(RowExchange& exchange, Tensor out, Tensor whole, bool add, Stream& stream);

StoreTensors allocate_store(const Config& config, const Mesh& mesh, Arena& arena);

// This rank's part of one bucket, for the optimizer. All (n), n a multiple of kBlock.
struct BucketSlice {
  int chunk = 0, bucket = 0;
  GradScope scope = GradScope::kSplit;
  Tensor master;               // f32: the weights that are updated
  Tensor param;                // bf16 copy to write, or empty when `master` is the parameter itself
  Tensor grad;                 // f32
  Tensor exp_avg, exp_avg_sq;  // f32
  Tensor block_tensor;         // (n / kBlock) i32
};

class ParameterStore final : public ParameterHooks {
 public:
  ParameterStore(const Config& config, const Mesh& mesh, StoreTensors tensors, int num_microbatches, Device& device,
                 Stream& compute, Channel& dp, RowExchange* exchange);
  ~ParameterStore() override;

  // [chunk][parameter]; addresses are stable.
  const std::vector<std::vector<Parameter>>& parameters() const { return parameters_; }
  const StoreTensors& tensors() const { return tensors_; }
  const std::vector<std::string>& tensor_names() const { return tensor_names_; }  // [S]

  // Parameters and master weights from `config.run.seed`; moments stay as they are. Waits until they are there.
  void make_start_values();

  // After master weights and moments were overwritten, each by the dp rank that owns it: completes those of the other
  // dp ranks (zero 0), and the parameters.
  void state_loaded();

  void begin_step();  // gradients count as zero
  // From the next begin_step() on: local_sumsq, at the price of one more read of the gradients.
  void sum_own_gradients(bool on) { sums_own_ = on; }
  void begin_backward(int chunk, int microbatch) override;
  void before_use(const Parameter& parameter) override;
  Tensor gradient(const Parameter& parameter) override;
  GradientTarget gradient_target(const Parameter& parameter) override;
  void gradient_ready(const Parameter& parameter) override;

  // Memory of the gradient's shape and alignment, whatever stands there.
  Tensor any_gradient_place(const Parameter& parameter);

  // Enqueues what completes the slices' gradients after the last backward: the compute stream waits for the dp
  // reductions, replicated gradients are summed over tp, tied ones over `embedding` (null where no such group is).
  void finish_gradients(Channel& tp, Channel* embedding);

  // Slices in the order of the first use of their parameters.
  const std::vector<BucketSlice>& slices() const { return slices_; }
  // After a slice's update was enqueued: gathers its bucket over dp.
  void publish(const BucketSlice& slice);

 private:
  struct BucketState;

  void fill_tables();
  void open_bucket(BucketState& bucket);
  Tensor gradient_at(const Parameter& parameter, Tensor whole);
  void reduce(BucketState& bucket);
  BucketState& bucket_of(const Parameter& parameter);
  Tensor slice_of(Tensor whole) const;

  const Config& config_;
  const Mesh mesh_;
  StoreTensors tensors_;
  const int num_microbatches_;
  const bool sharded_;        // zero >= 1
  const bool grads_sharded_;  // zero 2
  Stream& compute_;
  Channel& dp_;
  RowExchange* exchange_;  // null: buckets go through dp_
  std::vector<std::vector<Parameter>> parameters_;
  std::vector<std::string> tensor_names_;
  std::vector<std::vector<std::unique_ptr<BucketState>>> buckets_;  // [chunk][bucket]
  std::vector<BucketSlice> slices_;
  std::vector<std::unique_ptr<Event>> pool_freed_;  // [pool buffer]: its reduction is done
  std::vector<bool> pool_open_;                     // [pool buffer]: a bucket is being filled
  size_t pool_next_ = 0;
  bool sums_own_ = false;
};

}  // namespace tri
