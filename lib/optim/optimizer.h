// The sharded optimizer step: global gradient norm, clipping, update of this rank's slices (lib/optim/optimizers.h),
// gathering of parameters. Everything is enqueued on the compute stream; nothing waits on the host.
#pragma once

#include "lib/optim/optimizers.h"
#include "lib/optim/parameter_store.h"

namespace tri {

struct OptimizerTensors {
  Tensor sumsq;                     // (S) f32: squares of the slices' gradients, this rank's part
  Tensor norm;                      // (1) f32: of all gradients, before clipping
  Tensor grad_scale;                // (1) f32: the clipping factor
  std::vector<Tensor> tensor_sums;  // [OptimizerRow::num_tensor_sums] (S) f32
};

// `num_tensors`: S.
OptimizerTensors allocate_optimizer(const Config& config, int num_tensors, Arena& arena);

struct OptimizerContext {
  const Config& config;
  ParameterStore& store;
  OptimizerTensors tensors;
  Tensor sums;                    // (n) f32: numbers that reduce() sums over all ranks: the norm's, and any others
  Tensor norm_sq;                 // (1) f32, one of `sums`: reduce() fills it in
  std::vector<AxisGroup> groups;  // that sum over the axes of shards, and over those that remain after the buckets'
  GroupOnStream& dp;
  GroupOnStream& world;
  Stream& compute;
};

class Optimizer {
 public:
  // What the context refers to outlives the optimizer.
  explicit Optimizer(OptimizerContext context) : context_(std::move(context)) {}

  // Completes the gradients and the squared norm; `sums` become the sums over all ranks.
  void reduce();
  // The clipping factor, of the norm that reduce() made.
  void clip();
  // Updates, gathers. `step` counts from 0. Gradients that are not finite change nothing.
  void update(int64_t step, double learning_rate);

  const OptimizerTensors& tensors() const { return context_.tensors; }

 private:
  OptimizerContext context_;
};

}  // namespace tri
