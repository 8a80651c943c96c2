#include "lib/optim/parameter_gathers.h"

namespace tri {

ParameterGathers::ParameterGathers(const ParameterGathersContext& context)
    : memory_(context.memory),
      compute_(context.compute),
      dp_(context.dp) {}

void ParameterGathers::publish(const BucketSlice& slice) {
  if (!memory_.sharded()) return;
  const Tensor full = memory_.buckets()[static_cast<size_t>(slice.bucket)].parameters;
  dp_.finish_gather(full, compute_);  // the one before, where nothing has used it
  dp_.begin_gather(full, compute_);
  dp_.start_gather(full, compute_);
}

void ParameterGathers::before_use(const Parameter& parameter) {
  const auto bucket = static_cast<size_t>(memory_.bucket_of(parameter));
  dp_.finish_gather(memory_.buckets()[bucket].parameters, compute_);  // where it is still on its way
}

void ParameterGathers::complete_state() {
  if (memory_.sharded() || dp_.size() == 1) return;
  GroupOnStream& collectives = dp_.collectives();
  collectives.after(compute_);
  const auto gather = [&](const Tensor& full) { collectives.all_gather(full, dp_.local_rows(full)); };
  for (const BucketSlice& slice : memory_.slices()) {
    gather(slice.master);
    for (const Tensor& full : slice.state) gather(full);
  }
  collectives.before(compute_);
}

}  // namespace tri
