#include "lib/optim/optimizer.h"

#include <cmath>

#include "kernels/ops.h"

namespace tri {
namespace {

// What an update function works with.
struct Update {
  const Config& config;
  ParameterStore& store;
  const OptimizerTensors& tensors;
  const OptimizerGroups& groups;
  Stream& compute;
  float lr;
  int64_t step;

  Moments moments(const BucketSlice& slice) const {
    const auto& o = config.optimizer;
    const auto count = static_cast<double>(step + 1);
    return {.master = slice.master,
            .exp_avg = slice.exp_avg,
            .exp_avg_sq = slice.exp_avg_sq,
            .grad = slice.grad,
            .grad_scale = tensors.grad_scale,
            .block_tensor = slice.block_tensor,
            .decay = store.tensors().decay,
            .beta1 = static_cast<float>(o.beta1),
            .beta2 = static_cast<float>(o.beta2),
            .eps = static_cast<float>(o.eps),
            .bias_correction1 = static_cast<float>(1.0 - std::pow(o.beta1, count)),
            .bias_correction2 = static_cast<float>(1.0 - std::pow(o.beta2, count))};
  }
};

void adamw(const Update& u) {
  for (const BucketSlice& slice : u.store.memory().slices()) {
    adamw_update({.moments = u.moments(slice), .param = slice.param, .lr = u.lr}, u.compute);
    u.store.gathers().publish(slice);
  }
}

void lamb(const Update& u) {
  const OptimizerTensors& t = u.tensors;
  u.compute.zero(t.weight_sumsq);
  u.compute.zero(t.direction_sumsq);
  for (const BucketSlice& slice : u.store.memory().slices()) {
    tensor_sumsq({.sumsq = t.weight_sumsq, .inp = slice.master, .block_tensor = slice.block_tensor}, u.compute);
    lamb_direction({.moments = u.moments(slice)}, u.compute);
    tensor_sumsq({.sumsq = t.direction_sumsq, .inp = slice.grad, .block_tensor = slice.block_tensor}, u.compute);
  }
  // A tensor's parts lie on the dp ranks (their slices) and, when it is divided, on the tp ranks.
  const int64_t split = u.store.tensors().num_split_tensors;
  for (const Tensor& sums : {t.weight_sumsq, t.direction_sumsq}) {
    if (u.config.parallel.zero >= 1) {
      u.groups.dp.after(u.compute);
      u.groups.dp.all_reduce(sums, ReduceOp::kSum);
      u.groups.dp.before(u.compute);
    }
    u.groups.tp.after(u.compute);
    u.groups.tp.all_reduce(sums.flat(0, split), ReduceOp::kSum);
    u.groups.tp.before(u.compute);
  }
  for (const BucketSlice& slice : u.store.memory().slices()) {
    lamb_apply({.master = slice.master,
                .param = slice.param,
                .direction = slice.grad,
                .weight_sumsq = t.weight_sumsq,
                .direction_sumsq = t.direction_sumsq,
                .grad_scale = t.grad_scale,
                .block_tensor = slice.block_tensor,
                .decay = u.store.tensors().decay,
                .lr = u.lr},
               u.compute);
    u.store.gathers().publish(slice);
  }
}

struct Row {
  OptimizerKind kind;
  void (*update)(const Update&);
};
constexpr Row kOptimizers[] = {{OptimizerKind::kAdamW, adamw}, {OptimizerKind::kLamb, lamb}};

}  // namespace

OptimizerTensors allocate_optimizer(const Config& config, int num_tensors, Arena& arena) {
  const char* name = "optimizer tables";
  OptimizerTensors t;
  t.sumsq = arena.take(name, Dtype::kF32, {num_tensors});
  t.stats = arena.take(name, Dtype::kF32, {kNumStats});
  t.norm = arena.take(name, Dtype::kF32, {1});
  t.grad_scale = arena.take(name, Dtype::kF32, {1});
  if (config.optimizer.name == OptimizerKind::kLamb) {
    t.weight_sumsq = arena.take(name, Dtype::kF32, {num_tensors});
    t.direction_sumsq = arena.take(name, Dtype::kF32, {num_tensors});
  }
  return t;
}

Optimizer::Optimizer(const Config& config, ParameterStore& store, OptimizerTensors tensors, OptimizerGroups groups,
                     Stream& compute)
    : config_(config), store_(store), tensors_(std::move(tensors)), groups_(groups), compute_(compute) {}

void Optimizer::reduce() {
  store_.gradients().finish(groups_.tp, groups_.embedding);
  compute_.zero(tensors_.sumsq);
  for (const BucketSlice& slice : store_.memory().slices())
    tensor_sumsq({.sumsq = tensors_.sumsq, .inp = slice.grad, .block_tensor = slice.block_tensor}, compute_);
  const Tensor norm_sq = tensors_.stats.flat(kStatNormSq, 1);
  compute_.zero(norm_sq);
  weighted_sum({.out = norm_sq, .inp = tensors_.sumsq, .weight = store_.tensors().count_weight}, compute_);
  groups_.world.after(compute_);
  groups_.world.all_reduce(tensors_.stats, ReduceOp::kSum);
  groups_.world.before(compute_);  // the clipping factor needs the whole model's norm
}

void Optimizer::update(int64_t step, double learning_rate) {
  clip_scale({.scale = tensors_.grad_scale,
              .norm = tensors_.norm,
              .norm_sq = tensors_.stats.flat(kStatNormSq, 1),
              .max_norm = static_cast<float>(config_.optimizer.clip)},
             compute_);
  const Update update{config_, store_, tensors_, groups_, compute_, static_cast<float>(learning_rate), step};
  for (const Row& row : kOptimizers)
    if (row.kind == config_.optimizer.name) return row.update(update);
  TRI_REQUIRE(false, "optimizer {} has no row", enum_name(config_.optimizer.name));
}

}  // namespace tri
