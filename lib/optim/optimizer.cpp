#include "lib/optim/optimizer.h"

#include "kernels/ops.h"
#include "lib/optim/optimizers.h"

namespace tri {

OptimizerTensors allocate_optimizer(const Config& config, const Mesh& mesh, const StoreTensors& store, Arena& arena) {
  const int num_tensors = store.num_tensors;
  const char* name = "optimizer tables";
  OptimizerTensors t;
  t.sumsq = arena.take(name, Dtype::kF32, {num_tensors});
  t.norm = arena.take(name, Dtype::kF32, {1});
  t.grad_scale = arena.take(name, Dtype::kF32, {1});
  for (int i = 0; i < optimizer_row(config.optimizer.name).num_tensor_sums; ++i)
    t.tensor_sums.push_back(arena.take(name, Dtype::kF32, {num_tensors}));
  t.muon = allocate_muon(config, mesh, store, arena);
  return t;
}

// Without the check, sums over the parts of a tensor would silently be incomplete.
Optimizer::Optimizer(OptimizerContext context) : context_(std::move(context)) {
  AxisSet missing = context_.store.memory.axes_to_sum();
  for (const AxisGroup& sum : context_.groups) missing = missing - AxisSet{sum.axis};
  TRI_REQUIRE(missing.empty(), "parameters are sharded or reduced over {}, but no group sums over it",
              to_string(missing));
  TRI_REQUIRE(context_.updates == nullptr || context_.device != nullptr, "overlapping updates need the device");
  if (context_.updates != nullptr) clipped_ = context_.device->make_event();
  if (context_.config.optimizer.name != OptimizerKind::kMuon) return;
  TRI_REQUIRE(context_.matrices != nullptr && context_.device != nullptr, "Muon needs the group of its matrices");
  muon_ = std::make_unique<Muon>(context_.store.memory, context_.tensors.muon, *context_.matrices, *context_.device,
                                 context_.compute);
}

void Optimizer::reduce() {
  const OptimizerContext& c = context_;
  const ParameterMemory& memory = c.store.memory;
  c.store.gathers.finish_updates();
  c.store.gradients.finish(c.groups);
  if (!c.store.gradients.sums_squares()) c.compute.zero(c.tensors.sumsq);
  for (const BucketSlice& slice : memory.slices())
    if (!c.store.gradients.squared(slice.bucket))
      tensor_sumsq({.sumsq = c.tensors.sumsq, .inp = slice.grad, .block_tensor = slice.block_tensor}, c.compute);
  c.compute.zero(c.norm_sq);
  weighted_sum({.out = c.norm_sq, .inp = c.tensors.sumsq, .weight = memory.tensors().count_weight}, c.compute);
  c.world.after(c.compute);
  c.world.all_reduce(c.sums, ReduceOp::kSum);
  c.world.before(c.compute);  // the clipping factor needs the whole model's norm
}

void Optimizer::clip(const StepLimits& limits) {
  const OptimizerContext& c = context_;
  clip_scale({.scale = c.tensors.grad_scale,
              .norm = c.tensors.norm,
              .norm_sq = c.norm_sq,
              .loss = c.loss,
              .max_norm = static_cast<float>(c.config.optimizer.clip),
              .norm_limit = limits.grad_norm,
              .loss_limit = limits.loss},
             c.compute);
}

void Optimizer::update(int64_t step, double learning_rate, UpdateOrder order) {
  const OptimizerContext& c = context_;
  // A profiled compute stream runs everything itself.
  const bool overlaps = order == UpdateOrder::kOverlapped && c.updates != nullptr && c.compute.profile() == nullptr;
  Stream& stream = overlaps ? *c.updates : c.compute;
  if (overlaps) {
    c.compute.record(*clipped_);
    stream.wait(*clipped_);
  }
  const bool leaves_room = overlaps && should_leave_room(c.config);
  const double adamw_lr = c.config.optimizer.adamw_lr;
  const double rest = adamw_lr > 0 ? adamw_lr / c.config.lr.peak : 1.0;
  optimizer_row(c.config.optimizer.name)
      .update({.config = c.config.optimizer,
               .lr = static_cast<float>(learning_rate),
               .adamw_lr = static_cast<float>(learning_rate * rest),
               .step = step,
               .memory = c.store.memory,
               .grad_scale = c.tensors.grad_scale,
               .tensor_sums = c.tensors.tensor_sums,
               .gathers = c.store.gathers,
               .groups = c.groups,
               .dp = c.dp,
               .experts = c.experts,
               .muon = muon_.get(),
               .stream = stream,
               .leaves_room = leaves_room});
  for (const BucketSlice& slice : c.store.memory.slices())
    if (!slice.ema.empty())
      average_weights({.ema = slice.ema,
                       .master = slice.master,
                       .grad_scale = c.tensors.grad_scale,
                       .decay = static_cast<float>(c.config.optimizer.ema)},
                      stream);
  if (overlaps) c.store.gathers.end_of_updates(stream);
  c.compute.leave_room(leaves_room);
}

}  // namespace tri
