#include "lib/engine/batch_inputs.h"

#include "kernels/ops.h"

namespace tri {

BatchInputs::BatchInputs(const RankTensors& tensors, Axis pp, Stream& compute)
    : tensors_(tensors), has_losses_(pp.ends_here()), compute_(compute) {}

void BatchInputs::load(std::span<const int32_t> inputs, std::span<const int32_t> targets,
                       std::span<const int32_t> document_starts) {
  const auto load = [&](const Tensor& device_tokens, std::span<const int32_t> tokens) {
    if (device_tokens.empty()) return;
    TRI_REQUIRE(static_cast<int64_t>(tokens.size()) <= device_tokens.numel(), "{} tokens do not fit into a step of {}",
                tokens.size(), device_tokens.numel());
    compute_.copy(device_tokens.data, tokens.data(), static_cast<int64_t>(tokens.size_bytes()));
  };
  load(tensors_.stage.inputs, inputs);
  load(tensors_.stage.targets, targets);
  const Tensor starts = tensors_.stage.document_starts;
  if (document_starts.empty() && !starts.empty())
    compute_.zero(starts);
  else
    load(starts, document_starts);
}

void BatchInputs::zero_losses() {
  if (has_losses_) compute_.zero(tensors_.stage.head.losses);
}

void BatchInputs::sum_losses() {
  compute_.zero(tensors_.loss);
  if (has_losses_)
    weighted_sum({.out = tensors_.loss, .inp = tensors_.stage.head.losses, .weight = tensors_.loss_weight}, compute_);
}

}  // namespace tri
