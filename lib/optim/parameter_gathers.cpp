#include "lib/optim/parameter_gathers.h"

#include "kernels/core/timeline.h"
#include "kernels/ops.h"

namespace tri {

ParameterGathers::ParameterGathers(const ParameterGathersContext& context)
    : memory_(context.memory),
      compute_(context.compute),
      transfers_(context.dp),
      dp_(context.dp.dp),
      all_updated_(context.device.make_event()) {
  for (size_t i = 0; i < memory_.buckets().size(); ++i) updated_.push_back(context.device.make_event());
  awaited_.assign(updated_.size(), false);
}

void ParameterGathers::publish(const BucketSlice& slice, Stream& stream) {
  const auto number = static_cast<size_t>(slice.bucket);
  const BucketMemory& bucket = memory_.buckets()[number];
  AxisTransfers* const over = transfers_.of(*bucket.bucket);
  if (&stream != &compute_) {
    TRI_REQUIRE(over == nullptr || over->size() == 1, "an update that overlaps may not be followed by a gather");
    stream.record(*updated_[number]);
    num_awaited_ += awaited_[number] ? 0 : 1;
    awaited_[number] = true;
    return;
  }
  if (!memory_.sharded() || over == nullptr) return;
  const Tensor full = bucket.parameters;
  over->finish_gather(full, compute_);  // the previous gather, if no pass has used it
  over->begin_gather(full, compute_);
  over->start_gather(full, compute_);
}

void ParameterGathers::end_of_updates(Stream& stream) {
  stream.record(*all_updated_);
  is_open_ = true;
}

void ParameterGathers::wait_for_update(size_t bucket) {
  if (!awaited_[bucket]) return;
  const TimeCategoryScope scope(compute_, TimeCategory::kOptimizer);
  compute_.wait(*updated_[bucket]);
  awaited_[bucket] = false;
  if (--num_awaited_ == 0) compute_.leave_room(false);
}

void ParameterGathers::before_zeroing() {
  for (size_t i = 0; i < awaited_.size(); ++i)
    if (!memory_.buckets()[i].bucket->matrices) wait_for_update(i);
}

void ParameterGathers::finish_updates() {
  if (!is_open_) return;
  const TimeCategoryScope scope(compute_, TimeCategory::kOptimizer);
  compute_.wait(*all_updated_);
  awaited_.assign(awaited_.size(), false);
  num_awaited_ = 0;
  is_open_ = false;
  compute_.leave_room(false);
}

void ParameterGathers::before_use(const Parameter& parameter) {
  const auto number = static_cast<size_t>(memory_.bucket_of(parameter));
  wait_for_update(number);
  const BucketMemory& bucket = memory_.buckets()[number];
  if (AxisTransfers* const over = transfers_.of(*bucket.bucket); over != nullptr)
    over->finish_gather(bucket.parameters, compute_);  // if it is still in progress
}

void ParameterGathers::state_loaded() {
  complete_state();
  for (const BucketSlice& slice : memory_.slices()) {
    if (!slice.quantized.out.empty()) continue;
    if (!slice.param.empty()) cast({.out = slice.param, .inp = slice.master}, compute_);
    publish(slice, compute_);
  }
}

void ParameterGathers::cast_weights() {
  for (const BucketSlice& slice : memory_.slices())
    if (!slice.quantized.out.empty())
      fp8_cast_slice({.quantized = slice.quantized, .inp = slice.master, .block_tensor = slice.block_tensor}, compute_);
}

void ParameterGathers::publish_weights() {
  for (const BucketSlice& slice : memory_.slices())
    if (!slice.quantized.out.empty()) publish(slice, compute_);
}

// Zero 0: sends each dp rank's share of master weights, their average and moments to all ranks.
void ParameterGathers::complete_state() {
  if (memory_.sharded()) return;
  GroupOnStream& collectives = dp_.collectives();
  collectives.after(compute_);
  for (const BucketSlice& slice : memory_.slices()) {
    AxisTransfers* const over = transfers_.of(*memory_.buckets()[static_cast<size_t>(slice.bucket)].bucket);
    if (over == nullptr) continue;
    const auto gather = [&](const Tensor& full) { over->collectives().all_gather(full, over->local_rows(full)); };
    gather(slice.master);
    for (const Tensor& full : slice.state) gather(full);
    if (!slice.ema.empty()) gather(slice.ema);
  }
  collectives.before(compute_);
}

}  // namespace tri
