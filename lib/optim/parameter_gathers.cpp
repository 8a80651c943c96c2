#include "lib/optim/parameter_gathers.h"

#include "kernels/core/timeline.h"

namespace tri {

ParameterGathers::ParameterGathers(const ParameterGathersContext& context)
    : memory_(context.memory),
      sharded_(context.config.parallel.zero >= 1),
      compute_(context.compute),
      dp_(context.dp),
      exchange_(context.exchange),
      states_(memory_.buckets().size()) {
  for (State& state : states_) state.gathered = context.device.make_event();
}

void ParameterGathers::publish(const BucketSlice& slice) {
  if (!sharded_) return;
  State& state = states_[static_cast<size_t>(slice.bucket)];
  const Tensor full = memory_.buckets()[static_cast<size_t>(slice.bucket)].parameters;
  if (exchange_ != nullptr) {
    if (state.pending) exchange_->finish_gather(full, compute_);
    exchange_->begin_gather(full, compute_);
    exchange_->start_gather(full, compute_);
  } else {
    dp_.after(compute_);  // the dp channel waits for the update of this slice
    dp_.all_gather(full, memory_.slice_of(full));
    dp_.stream().record(*state.gathered);
  }
  state.pending = true;
}

void ParameterGathers::before_use(const Parameter& parameter) {
  const int bucket = memory_.bucket_of(parameter);
  State& state = states_[static_cast<size_t>(bucket)];
  if (!state.pending) return;
  state.pending = false;
  // compute waits for the updated parameters of the previous step
  if (exchange_ != nullptr)
    return exchange_->finish_gather(memory_.buckets()[static_cast<size_t>(bucket)].parameters, compute_);
  const TimeCategoryScope scope(compute_, dp_.category());
  compute_.wait(*state.gathered);
}

void ParameterGathers::complete_state() {
  if (sharded_ || dp_.size() == 1) return;
  dp_.after(compute_);
  for (const BucketSlice& slice : memory_.slices())
    for (const Tensor& full : {slice.master, slice.exp_avg, slice.exp_avg_sq}) {
      const int64_t share = full.numel() / dp_.size();
      dp_.all_gather(full, full.flat(dp_.rank() * share, share));
    }
  dp_.before(compute_);
}

}  // namespace tri
