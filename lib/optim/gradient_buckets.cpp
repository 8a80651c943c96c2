#include "lib/optim/gradient_buckets.h"

#include <algorithm>

#include "kernels/core/timeline.h"
#include "kernels/ops.h"

namespace tri {

void reduce_bucket(AxisTransfers* dp, SumInto into, Tensor out, Tensor full, Stream& stream) {
  Tensor parts = with_parts(full, 1);
  if (dp != nullptr) {
    for (const RowBlock& block : dp->begin_reduce(full, {.num_splits = 1}, stream)) dp->send(block, stream);
    parts = dp->finish_reduce(stream);
  }
  const bool is_there = into == SumInto::kOverwrite && parts[0] == 1 && parts.data == out.data;
  if (!is_there) sum_parts({.into = into, .out = out, .parts = parts}, stream);
}

struct GradientBuckets::State {
  const BucketMemory* memory = nullptr;
  Tensor full;                      // (size) f32: where gradients are added; zero 2: while open
  int pool = -1;                    // zero 2: index of the pool buffer while open
  bool open = false;                // zero 2: `full` is valid
  std::vector<bool> written;        // [parameter of the bucket]: its gradient contains values of this step
  int64_t ready = 0;                // gradients completed in this step
  std::unique_ptr<Event> freed;     // zero 2: the reduction that read the dedicated buffer is done
  std::unique_ptr<Event> complete;  // LocalSums: the step's gradients
  bool squared = false;             // LocalSums: in this step
};

GradientBuckets::GradientBuckets(const GradientBucketsContext& context)
    : memory_(context.memory),
      num_microbatches_(context.num_microbatches),
      grads_sharded_(context.config.parallel.zero == 2),
      compute_(context.compute),
      transfers_(context.dp),
      dp_(context.dp.dp),
      sums_(context.sums),
      squares_done_(context.device.make_event()) {
  for (const BucketMemory& bucket : memory_.buckets()) {
    auto state = std::make_unique<State>();
    state->memory = &bucket;
    if (!grads_sharded_) state->full = bucket.gradients;
    state->written.assign(bucket.bucket->parameters.size(), false);
    state->freed = context.device.make_event();
    state->complete = context.device.make_event();
    states_.push_back(std::move(state));
  }
  const size_t pool = memory_.tensors().pool.size();
  for (size_t i = 0; i < pool; ++i) pool_freed_.push_back(context.device.make_event());
  pool_open_.assign(pool, false);
}

GradientBuckets::~GradientBuckets() = default;

GradientBuckets::State& GradientBuckets::state_of(const Parameter& parameter) {
  return *states_[static_cast<size_t>(memory_.bucket_of(parameter))];
}

void GradientBuckets::begin_step() {
  if (grads_sharded_)
    for (const ChunkStoreTensors& chunk : memory_.tensors().chunks) compute_.zero(chunk.gradients);
  for (const auto& state : states_) {
    // Zero small tensors now; the first GEMM overwrites a matrix.
    const bool matrices = state->memory->bucket->matrices;
    if (!matrices && !grads_sharded_) compute_.zero(state->full);
    state->written.assign(state->written.size(), !matrices);
    state->ready = 0;
    state->squared = false;
  }
  if (sums_squares()) compute_.zero(sums_.sumsq);
  if (sums_local_) compute_.zero(memory_.tensors().local_sumsq);
}

// Zero 2: gives the bucket memory for its full gradients.
void GradientBuckets::open(State& state) {
  const Tensor& dedicated = state.memory->gradients;
  if (!dedicated.empty()) {
    state.full = dedicated;
    const TimeCategoryScope scope(compute_, dp_.category());
    compute_.wait(*state.freed);  // compute waits for the previous microbatch's reduction
  } else {
    const std::vector<Tensor>& pool = memory_.tensors().pool;
    size_t tried = 0;
    while (pool_open_[pool_next_]) {
      pool_next_ = (pool_next_ + 1) % pool.size();
      TRI_REQUIRE(++tried < pool.size(), "all {} gradient buffers are open", pool.size());
    }
    state.pool = static_cast<int>(pool_next_);
    pool_open_[pool_next_] = true;
    state.full = pool[pool_next_].flat(0, state.memory->bucket->size);
    const TimeCategoryScope scope(compute_, dp_.category());
    compute_.wait(*pool_freed_[pool_next_]);  // compute waits for the reduction of its previous bucket
    pool_next_ = (pool_next_ + 1) % pool.size();
  }
  // The first GEMM overwrites a matrix, but not the rest of its last block, which is included in sums.
  const bool overwritten = state.memory->bucket->matrices && !state.memory->ragged;
  if (!overwritten) compute_.zero(state.full);
  state.written.assign(state.written.size(), !overwritten);
  state.open = true;
}

// Zero 2: the memory can be reused once the reduction just enqueued on the dp stream is done.
void GradientBuckets::close(State& state) {
  Event& freed = state.pool >= 0 ? *pool_freed_[static_cast<size_t>(state.pool)] : *state.freed;
  dp_.collectives().stream().record(freed);
  if (state.pool >= 0) pool_open_[static_cast<size_t>(state.pool)] = false;
  state.pool = -1;
  state.open = false;
}

ParameterHooks::GradientTarget GradientBuckets::gradient_target(const Parameter& parameter) {
  State& state = state_of(parameter);
  if (grads_sharded_ && !state.open) open(state);
  const auto& members = state.memory->bucket->parameters;
  const auto member = static_cast<size_t>(std::find(members.begin(), members.end(), parameter.index) - members.begin());
  const float beta = state.written[member] ? 1.0f : 0.0f;
  state.written[member] = true;
  return {memory_.gradient_in(state.full, parameter), beta};
}

Tensor GradientBuckets::gradient(const Parameter& parameter) {
  const ParameterHooks::GradientTarget target = gradient_target(parameter);
  if (target.beta == 0.0f) compute_.zero(target.tensor);
  return target.tensor;
}

void GradientBuckets::gradient_ready(const Parameter& parameter) {
  State& state = state_of(parameter);
  const auto all = static_cast<int64_t>(state.memory->bucket->parameters.size());
  ++state.ready;
  const bool is_last = state.ready == all * num_microbatches_;
  if (is_last || (grads_sharded_ && state.ready % all == 0)) reduce(state, is_last);
  if (is_last && sums_squares() && state.memory->bucket->reduced.empty()) square(state);
}

bool GradientBuckets::squared(int bucket) const { return states_[static_cast<size_t>(bucket)]->squared; }

// A profiled compute stream runs everything itself.
void GradientBuckets::square(State& state) {
  const BucketMemory& bucket = *state.memory;
  Stream& stream = compute_.profile() != nullptr ? compute_ : *sums_.stream;
  if (&stream != &compute_) {
    compute_.record(*state.complete);
    stream.wait(*state.complete);
  }
  tensor_sumsq({.sumsq = sums_.sumsq, .inp = bucket.gradient_slice, .block_tensor = bucket.block_tensor}, stream);
  state.squared = true;
}

// `is_last`: of the step.
void GradientBuckets::reduce(State& state, bool is_last) {
  const BucketMemory& bucket = *state.memory;
  AxisTransfers* const over = transfers_.of(*bucket.bucket);
  GroupOnStream& collectives = dp_.collectives();
  Stream& stream = collectives.stream();
  // A gradient that is missing would be another bucket's values, which the memory still holds.
  TRI_REQUIRE(std::ranges::find(state.written, false) == state.written.end(),
              "a bucket of {} gradients is reduced without all of them", state.written.size());
  collectives.after(compute_);  // the dp stream waits for the bucket's last gradient
  if (Timeline* const timeline = compute_.timeline(); timeline != nullptr && dp_.size() > 1 && is_last)
    timeline->note_ready();
  // To locate a NaN, take per-tensor norms before the reduction. The global norm covers buckets that are not reduced.
  if (sums_local_ && ((over != nullptr && over->size() > 1) || !bucket.bucket->remaining().empty()))
    tensor_sumsq({.sumsq = memory_.tensors().local_sumsq, .inp = state.full, .block_tensor = bucket.block_tensor},
                 stream);
  if (!memory_.sharded()) {
    if (over != nullptr) over->collectives().all_reduce(state.full, ReduceOp::kSum);
    return;
  }
  reduce_bucket(over, grads_sharded_ ? SumInto::kAdd : SumInto::kOverwrite, bucket.gradient_slice, state.full, stream);
  if (grads_sharded_) close(state);
}

void GradientBuckets::finish(const std::vector<AxisGroup>& groups) {
  dp_.collectives().before(compute_);  // compute waits for all dp reductions
  dp_.wait_until_read(compute_);
  for (const AxisGroup& sum : groups) sum.group->after(compute_);
  for (const BucketSlice& slice : memory_.slices()) {
    AxisSet remaining = slice.remaining;
    for (const AxisGroup& sum : groups) {
      if (!remaining.contains(sum.axis)) continue;
      sum.group->all_reduce(slice.grad, ReduceOp::kSum);
      remaining = remaining - AxisSet{sum.axis};
    }
    TRI_REQUIRE(remaining.empty(), "no group reduces gradients over {}", to_string(remaining));
  }
  for (const AxisGroup& sum : groups) sum.group->before(compute_);  // compute waits for these sums
  if (!sums_squares()) return;
  sums_.stream->record(*squares_done_);
  compute_.wait(*squares_done_);
}

}  // namespace tri
