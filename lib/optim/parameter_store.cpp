#include "lib/optim/parameter_store.h"

#include "kernels/ops.h"
#include "lib/optim/start_values.h"

namespace tri {

ParameterStore::ParameterStore(const ParameterStoreContext& context)
    : config_(context.config),
      mesh_(context.mesh),
      compute_(context.compute),
      memory_(context.config, context.mesh, context.tensors, context.compute, context.fp8),
      gradients_({.config = context.config,
                  .memory = memory_,
                  .num_microbatches = context.num_microbatches,
                  .device = context.device,
                  .compute = context.compute,
                  .dp = context.dp}),
      gathers_({.memory = memory_, .compute = context.compute, .dp = context.dp}) {}

void ParameterStore::make_start_values() { write_start_values(memory_, mesh_, config_.run.seed, compute_); }

void ParameterStore::state_loaded() {
  gathers_.complete_state();
  for (const BucketSlice& slice : memory_.slices()) {
    if (!slice.codes.out.empty()) continue;
    if (!slice.param.empty()) cast({.out = slice.param, .inp = slice.master}, compute_);
    gathers_.publish(slice);
  }
}

void ParameterStore::cast_codes() {
  for (const BucketSlice& slice : memory_.slices())
    if (!slice.codes.out.empty())
      fp8_cast_slice({.codes = slice.codes, .inp = slice.master, .block_tensor = slice.block_tensor}, compute_);
}

void ParameterStore::publish_codes() {
  for (const BucketSlice& slice : memory_.slices())
    if (!slice.codes.out.empty()) gathers_.publish(slice);
}

Tensor ParameterStore::gradient(const Parameter& parameter) {
  const GradientTarget target = gradient_target(parameter);
  if (target.beta == 0.0f) compute_.zero(target.tensor);
  return target.tensor;
}

}  // namespace tri
