#include "lib/model/block.h"

#include <utility>

#include "kernels/ops.h"

namespace tri {

// The state of one pass.
struct TransformerBlock::State {
  const LayerContext& ctx;
  LayerTensors t;
  ResidualStream stream = {};       // forward: the next norm's input; at the end the output of the pass
  std::vector<RowBlock> sums = {};  // the blocks of the current reduce
  float beta = 0.0f;                // of the next GEMM that adds to them
  Inner inner = Inner::kForward;
  // Backward.
  Tensor dinput = {};
  WeightGradient deferred = {};
  QkvWeight qkv_weight = QkvWeight::kDefer;
};

TransformerBlock::TransformerBlock(int layer, const std::vector<Parameter>& parameters, const Config& config)
    : spec_(layers_of_model(config)[layer]) {
  for (const Branch branch : kBranches)
    branches_[static_cast<size_t>(branch)] =
        spec_.visit(branch, [&](const auto& spec) { return make_branch(spec, spec_, layer, parameters); });
  for (const NormSpec& norm : spec_.norms) {
    norms_.push_back(NormLayer::bind(parameters, norm.module, layer));
    norms_.back().reader = of(norm.branch).column_linear().linear;
  }
}

ResidualStream TransformerBlock::forward(const LayerContext& ctx, ResidualStream stream, LayerTensors& t) const {
  if (stream.add.empty()) t.input = stream.inp;
  State s{.ctx = ctx, .t = t, .stream = stream};
  run_forward(s, block_order(spec_.block, Pass::kForward));
  return s.stream;
}

void TransformerBlock::run_forward(State& s, std::span<const TransferRegion> regions) const {
  const LayerContext& ctx = s.ctx;
  for (const TransferRegion& region : regions) {
    const Branch branch = region.linear.branch;
    if (region.reduces())
      s.sums = ctx.begin_reduce(region.rows(ctx.work, s.t), ctx.splits.of(region.linear, region.pass));
    else
      gather_norm(s, branch);
    run(s, region);
    if (!region.reduces()) continue;
    s.stream = {.inp = stream_of(s.t, branch),
                .add = ctx.finish_reduce(),
                .add_bias = of(branch).row_linear().bias_to_add(ctx)};
  }
}

void TransformerBlock::backward(const LayerContext& ctx, const LayerTensors& kept, Tensor dinput,
                                WeightGradient& deferred, QkvWeight qkv_weight) const {
  State s{.ctx = ctx, .t = kept, .dinput = dinput, .deferred = std::exchange(deferred, {}), .qkv_weight = qkv_weight};
  for (const TransferRegion& region : block_order(spec_.block, Pass::kBackward)) {
    if (region.reduces())
      s.sums = ctx.begin_reduce(region.rows(ctx.work, s.t), ctx.splits.of(region.linear, region.pass));
    else
      gather_gradient(s, region.linear.branch);
    run(s, region);
    if (region.reduces()) norm_backward(s, region.linear.branch);
  }
  deferred = std::move(s.deferred);
}

void TransformerBlock::run_gemms(const TransferRegion& region, const LayerContext& ctx, const LayerTensors& t,
                                 const std::vector<RowBlock>& sums) const {
  State s{.ctx = ctx, .t = t, .sums = sums};
  defer_weight(s, Branch::kAttention);
  run(s, region, true);
}

void TransformerBlock::run(State& s, const TransferRegion& region, bool gemms_alone) const {
  s.beta = 0.0f;
  for (const BlockStep& at : region.steps)
    if (!gemms_alone || is_gemm(at.step)) run(s, region, at);
}

void TransformerBlock::run(State& s, const TransferRegion& region, const BlockStep& at) const {
  const LayerContext& ctx = s.ctx;
  const BranchLayer& branch = of(at.branch);
  const Tensor normed = s.t.normed_for(at.branch);
  // A reduce is named after the GEMM that adds to its sums last and sends them.
  const auto sums = [&]() -> PartialSums {
    return {s.sums, std::exchange(s.beta, 1.0f), at.branch == region.linear.branch ? Then::kSend : Then::kKeep};
  };
  switch (at.step) {
    case Step::kColumnForward:
      return branch.column_forward(ctx, s.t, normed);
    case Step::kInnerForward:
      return branch.inner_forward(ctx, s.t, s.inner);
    case Step::kRowForward:
      return branch.row_forward(ctx, s.t, sums());
    case Step::kRowGradient:
      return branch.row_gradient(ctx, s.t);
    case Step::kInnerBackward:
      return branch.inner_backward(ctx, s.t);
    case Step::kColumnGradient:
      return branch.column_gradient(ctx, sums());
    case Step::kRowWeight:
      return branch.row_weight(ctx, s.t);
    case Step::kColumnWeight:
      return branch.column_weight(ctx, normed);
    case Step::kDefer:
      return defer_weight(s, at.branch);
    case Step::kDeferred:
      if (s.deferred) std::exchange(s.deferred, {})();
      return;
    case Step::kRecompute:
      s.t = recomputed(ctx, s.t);
      return;
    case Step::kRecomputeNorm:
      if (normed.data == (spec_.fp8 ? ctx.work.fp8.normed : ctx.work.normed).data)
        recompute_norm(s.ctx, s.t, at.branch);
      return;
  }
}

void TransformerBlock::gather_norm(State& s, Branch branch) const {
  const size_t norm = spec_.norm_before(branch);
  norms_[norm].forward(s.ctx, s.stream, stream_of(s.t, branch), s.t.norms[norm], s.t.normed_for(branch));
}

void TransformerBlock::recompute_norm(const LayerContext& ctx, const LayerTensors& t, Branch branch) const {
  const size_t norm = spec_.norm_before(branch);
  norms_[norm].forward(ctx, {.inp = stream_of(t, branch)}, {}, t.norms[norm], t.normed_for(branch));
}

void TransformerBlock::gather_gradient(State& s, Branch branch) const {
  const LayerContext& ctx = s.ctx;
  const LayerWorkspace& w = ctx.work;
  if (!spec_.fp8) return ctx.gather(w.dstream);
  const RowLinear& reader = of(branch).row_linear();
  if (ctx.tp.size() == 1) {  // all rows are local: one pass makes the transpose and the bias' gradient
    ctx.fp8->cast(Fp8Operand::kGradient, reader.linear, w.dstream, w.fp8.dstream, w.fp8.dstream_t,
                  reader.bias_gradient(ctx));
    return reader.bias_gradient_ready(ctx);
  }
  ctx.begin_gather(w.fp8.dstream);
  ctx.fp8->cast(Fp8Operand::kGradient, reader.linear, ctx.local_rows(w.dstream), ctx.local_rows(w.fp8.dstream));
  ctx.start_gather(w.fp8.dstream);
}

void TransformerBlock::norm_backward(State& s, Branch branch) const {
  const LayerContext& ctx = s.ctx;
  const size_t norm = spec_.norm_before(branch);
  const Tensor dstream = ctx.local_rows(ctx.work.dstream), dnormed = ctx.finish_reduce();
  const bool leaves_block = branch == kBranches.front();
  norms_[norm].backward(ctx, leaves_block ? s.dinput : dstream, dstream, dnormed, stream_of(s.t, branch),
                        s.t.norms[norm]);
}

void TransformerBlock::defer_weight(State& s, Branch branch) const {
  s.deferred = [this, &ctx = s.ctx, branch, rows = s.t.normed_for(branch)] { of(branch).column_weight(ctx, rows); };
  if (s.qkv_weight == QkvWeight::kEnqueue) std::exchange(s.deferred, {})();
}

// Returns `kept` plus the recomputed tensors that backward reads. Of the norms, recomputes the one that is read first.
LayerTensors TransformerBlock::recomputed(const LayerContext& ctx, const LayerTensors& kept) const {
  if (ctx.config.parallel.recompute == Recompute::kFull) {
    State s{.ctx = ctx, .t = recomputed_tensors(ctx.work, spec_), .stream = {.inp = kept.input}};
    s.t.input = kept.input;
    s.inner = Inner::kAgain;
    const std::span<const TransferRegion> regions = block_order(spec_.block, Pass::kForward);
    run_forward(s, regions.first(regions.size() - 1));  // backward reads no tensor of the last one
    return s.t;
  }
  LayerTensors t = with_workspace(kept, ctx.work, spec_);
  for (const auto& branch : branches_) branch->recompute(ctx, t);
  // Both norms share work.normed, so the second is computed only when it is needed.
  if (kept.normed_for(kBranches.back()).empty()) recompute_norm(ctx, t, kBranches.back());
  return t;
}

}  // namespace tri
