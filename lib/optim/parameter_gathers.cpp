#include "lib/optim/parameter_gathers.h"

#include "kernels/ops.h"

namespace tri {

ParameterGathers::ParameterGathers(const ParameterGathersContext& context)
    : memory_(context.memory), compute_(context.compute), transfers_(context.dp), dp_(context.dp.dp) {}

void ParameterGathers::publish(const BucketSlice& slice) {
  const BucketMemory& bucket = memory_.buckets()[static_cast<size_t>(slice.bucket)];
  AxisTransfers* const over = transfers_.of(*bucket.bucket);
  if (!memory_.sharded() || over == nullptr) return;
  const Tensor full = bucket.parameters;
  over->finish_gather(full, compute_);  // the previous gather, if no pass has used it
  over->begin_gather(full, compute_);
  over->start_gather(full, compute_);
}

void ParameterGathers::before_use(const Parameter& parameter) {
  const BucketMemory& bucket = memory_.buckets()[static_cast<size_t>(memory_.bucket_of(parameter))];
  if (AxisTransfers* const over = transfers_.of(*bucket.bucket); over != nullptr)
    over->finish_gather(bucket.parameters, compute_);  // if it is still in progress
}

void ParameterGathers::state_loaded() {
  complete_state();
  for (const BucketSlice& slice : memory_.slices()) {
    if (!slice.quantized.out.empty()) continue;
    if (!slice.param.empty()) cast({.out = slice.param, .inp = slice.master}, compute_);
    publish(slice);
  }
}

void ParameterGathers::cast_weights() {
  for (const BucketSlice& slice : memory_.slices())
    if (!slice.quantized.out.empty())
      fp8_cast_slice({.quantized = slice.quantized, .inp = slice.master, .block_tensor = slice.block_tensor}, compute_);
}

void ParameterGathers::publish_weights() {
  for (const BucketSlice& slice : memory_.slices())
    if (!slice.quantized.out.empty()) publish(slice);
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
