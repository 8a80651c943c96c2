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
  const DueLayer* due = nullptr;  // weight gradients are computed later
};

namespace {

// The inputs of linears that parallel.recompute does not save.
LayerTensors with_inputs(LayerTensors t, const LayerTensors& inputs) {
  const auto replace = [](Tensor& tensor, const Tensor& input) {
    if (!input.empty()) tensor = input;
  };
  for (size_t branch = 0; branch < t.normed.size(); ++branch) replace(t.normed[branch], inputs.normed[branch]);
  replace(t.mlp.activated, inputs.mlp.activated);
  replace(t.mlp.activated_t, inputs.mlp.activated_t);
  replace(t.moe.activated, inputs.moe.activated);
  replace(t.moe.shared_activated, inputs.moe.shared_activated);
  replace(t.moe.shared_activated_t, inputs.moe.shared_activated_t);
  return t;
}

// Whether a backward pass recomputes norms of saved rows, into memory that is not saved.
bool recomputes_norms(const LayerContext& ctx) {
  const Recompute recompute = ctx.config.parallel.recompute;
  return recompute == Recompute::kNorms || recompute == Recompute::kSelective;
}

}  // namespace

TransformerBlock::TransformerBlock(int layer, const std::vector<Parameter>& parameters, const Config& config)
    : spec_(layers_of_model(config)[layer]) {
  for (const Branch branch : kBranches)
    branches_[static_cast<size_t>(branch)] =
        spec_.visit(branch, [&](const auto& spec) { return make_branch(spec, spec_, layer, parameters); });
  for (const NormSpec& norm : spec_.norms) {
    norms_.push_back(NormLayer::bind(parameters, norm.module, layer));
    if (norm.place == NormPlace::kBefore) norms_.back().reader = of(norm.branch).column_linear().linear;
  }
}

ResidualStream TransformerBlock::forward(const LayerContext& ctx, ResidualStream stream, LayerTensors& t) const {
  if (stream.add.empty()) t.input = stream.inp;
  State s{.ctx = ctx, .t = t, .stream = stream};
  run_forward(s, block_order(spec_, Pass::kForward));
  return s.stream;
}

void TransformerBlock::run_forward(State& s, std::span<const TransferRegion> regions) const {
  const LayerContext& ctx = s.ctx;
  for (const TransferRegion& region : regions) {
    const Branch branch = region.linear.branch;
    const bool local = spec_.is_local(branch);
    if (region.reduces()) {
      if (!local) s.sums = ctx.begin_reduce(region.rows(ctx.work, s.t), ctx.splits.of(region.linear, region.pass));
    } else {
      gather_rows(ctx, s.t, branch, s.stream);
      s.stream = {.inp = stream_of(s.t, branch)};  // complete, for a second norm of it
    }
    run(s, region);
    if (region.reduces())
      s.stream = stream_after(s, branch, local ? with_parts(ctx.local_rows(ctx.work.partial), 1) : ctx.finish_reduce());
  }
}

void TransformerBlock::backward(const LayerContext& ctx, const LayerTensors& kept, Tensor dinput,
                                WeightGradient& deferred, QkvWeight qkv_weight) const {
  State s{.ctx = ctx, .t = kept, .dinput = dinput, .deferred = std::exchange(deferred, {}), .qkv_weight = qkv_weight};
  run_backward(s);
  deferred = std::move(s.deferred);
}

void TransformerBlock::backward_input(const LayerContext& ctx, const LayerTensors& kept, Tensor dinput,
                                      const DueLayer& due) const {
  const LayerContext with_due = ctx.with(due.work);
  State s{.ctx = with_due, .t = with_inputs(kept, due.inputs), .dinput = dinput, .due = &due};
  run_backward(s);
}

void TransformerBlock::weight_gradients(const LayerContext& ctx, const LayerTensors& kept, const DueLayer& due) const {
  LayerTensors t = ctx.config.parallel.recompute == Recompute::kFull
                       ? recomputed_tensors(due.work, spec_)
                       : with_workspace(with_inputs(kept, due.inputs), due.work, spec_);
  LayerWorkspace work = due.work;
  LayerContext weights = ctx.with(work);
  weights.weights_are_due = true;
  for (size_t i = kBranches.size(); i-- > 0;) {
    const auto b = static_cast<size_t>(kBranches[i]);
    work.dbranch = work.fp8.dstream_t = due.dbranch[b];
    const BranchLayer& branch = of(kBranches[i]);
    branch.resume(weights, t);
    branch.row_weight(weights, t);
    branch.column_weight(weights, t.normed[b]);
  }
}

void TransformerBlock::run_backward(State& s) const {
  const LayerContext& ctx = s.ctx;
  if (recomputes_first(ctx)) {
    run_deferred(s);  // it reads rows that are overwritten next
    s.t = recomputed(ctx, s.t);
  }
  for (const TransferRegion& region : block_order(spec_, Pass::kBackward)) {
    if (!region.reduces())
      gather_gradient(s, region.linear.branch);
    else if (!spec_.is_local(region.linear.branch))
      s.sums = ctx.begin_reduce(region.rows(ctx.work, s.t), ctx.splits.of(region.linear, region.pass));
    run(s, region);
    if (region.reduces()) rows_backward(s, region.linear.branch);
  }
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
    if (!gemms_alone || (is_gemm(at.step) && !spec_.is_local(at.branch))) run(s, region, at);
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
      return s.due != nullptr ? keep_row_gradient(s, at.branch) : branch.row_weight(ctx, s.t);
    case Step::kColumnWeight:
      return s.due != nullptr ? keep_column_input(s, at.branch) : branch.column_weight(ctx, normed);
    case Step::kDefer:
      return s.due != nullptr ? keep_column_input(s, at.branch) : defer_weight(s, at.branch);
    case Step::kDeferred:
      return run_deferred(s);
    case Step::kRecompute:
      if (!recomputes_first(ctx)) s.t = recomputed(ctx, s.t);
      return;
    case Step::kRecomputeNorm:
      if (recomputes_norms(ctx)) recompute_rows(s.ctx, s.t, at.branch);
      return;
  }
}

void TransformerBlock::run_deferred(State& s) const {
  if (s.deferred) std::exchange(s.deferred, {})();
}

bool TransformerBlock::recomputes_first(const LayerContext& ctx) const {
  return spec_.output_norms() > 0 && ctx.config.parallel.recompute == Recompute::kFull;
}

void TransformerBlock::gather_rows(const LayerContext& ctx, const LayerTensors& t, Branch branch,
                                   ResidualStream stream) const {
  const size_t norm = spec_.norm_before(branch);
  const Tensor rows = t.normed_for(branch);
  if (spec_.is_local(branch)) {
    const Tensor own = rows[0] == ctx.dims.Rl ? rows : ctx.local_rows(rows);
    if (norm != LayerSpec::kNoNorm)
      return norms_[norm].forward_local(ctx, stream, stream_of(t, branch), t.norms[norm], own);
    const Tensor sum = stream.add.empty() ? stream.inp : stream_of(t, branch);
    if (!stream.add.empty())
      residual_add({.out = sum, .inp = stream.inp, .add = stream.add, .add_bias = stream.add_bias}, ctx.compute);
    return ctx.compute.copy(own.data, sum.data, sum.bytes());
  }
  if (norm != LayerSpec::kNoNorm) return norms_[norm].forward(ctx, stream, stream_of(t, branch), t.norms[norm], rows);
  ctx.begin_gather(rows);
  const Tensor local = ctx.local_rows(rows), sum = stream.add.empty() ? stream.inp : stream_of(t, branch);
  if (!stream.add.empty())
    residual_add({.out = sum, .inp = stream.inp, .add = stream.add, .add_bias = stream.add_bias}, ctx.compute);
  if (is_fp8(rows.dtype))
    ctx.fp8->cast(Fp8Operand::kInput, of(branch).column_linear().linear, sum, local);
  else
    ctx.compute.copy(local.data, sum.data, sum.bytes());
  ctx.start_gather(rows);
}

ResidualStream TransformerBlock::stream_after(const State& s, Branch branch, Tensor parts) const {
  const LayerContext& ctx = s.ctx;
  const Tensor stream = stream_of(s.t, branch), bias = bias_to_add(ctx, branch);
  const size_t norm = spec_.norm_after(branch);
  if (norm == LayerSpec::kNoNorm) return {.inp = stream, .add = parts, .add_bias = bias};
  const Tensor output = s.t.outputs[static_cast<size_t>(branch)];
  sum_parts({.out = output, .parts = parts}, ctx.compute);
  if (!bias.empty()) position_forward({.inout = output, .weight = bias.view({1, bias.numel()})}, ctx.compute);
  norms_[norm].forward(ctx, ctx.work.branch, output, s.t.norms[norm]);
  return {.inp = stream, .add = ctx.work.branch};
}

Tensor TransformerBlock::bias_to_add(const LayerContext& ctx, Branch branch) const {
  const Tensor bias = of(branch).row_linear().bias_to_add(ctx);
  if (!spec_.adds_two_biases()) return bias;
  const Tensor sum = ctx.work.bias, other = of(kBranches.front()).row_linear().bias_to_add(ctx);
  ctx.compute.copy(sum.data, bias.data, bias.bytes());
  accumulate({.inout = sum, .inp = other.flat()}, ctx.compute);
  return sum;
}

void TransformerBlock::gather_gradient(State& s, Branch branch) const {
  const LayerContext& ctx = s.ctx;
  const LayerWorkspace& w = ctx.work;
  const Tensor gathered = spec_.fp8 ? w.fp8.dstream : w.dbranch, local = ctx.local_rows(w.dbranch);
  const bool stays = spec_.is_local(branch);
  if (!stays) ctx.begin_gather(gathered);
  if (const size_t norm = spec_.norm_after(branch); norm != LayerSpec::kNoNorm)
    norms_[norm].backward(ctx, local, {}, ctx.local_rows(w.dstream), s.t.outputs[static_cast<size_t>(branch)],
                          s.t.norms[norm]);
  if (stays) return;
  if (spec_.fp8) {
    const RowLinear& reader = of(branch).row_linear();
    if (ctx.tp.size() == 1) {  // all rows are local: one pass makes the transpose and the bias' gradient
      ctx.fp8->cast(Fp8Operand::kGradient, reader.linear, local, gathered, w.fp8.dstream_t, reader.bias_gradient(ctx));
      reader.bias_gradient_ready(ctx);
      if (spec_.adds_two_biases()) of(kBranches.front()).row_linear().add_bias_gradient(ctx, local);
      return;
    }
    ctx.fp8->cast(Fp8Operand::kGradient, reader.linear, local, ctx.local_rows(gathered));
  }
  ctx.start_gather(gathered);
}

void TransformerBlock::rows_backward(State& s, Branch branch) const {
  const LayerContext& ctx = s.ctx;
  const size_t norm = spec_.norm_before(branch);
  const Tensor dstream = ctx.local_rows(ctx.work.dstream);
  const Tensor drows = spec_.is_local(branch) ? with_parts(ctx.local_rows(ctx.work.dnormed), 1) : ctx.finish_reduce();
  const Tensor dinp = branch == kBranches.front() ? s.dinput : dstream;
  if (norm == LayerSpec::kNoNorm) return residual_add({.out = dinp, .inp = dstream, .add = drows}, ctx.compute);
  norms_[norm].backward(ctx, dinp, dstream, drows, stream_of(s.t, branch), s.t.norms[norm]);
}

void TransformerBlock::defer_weight(State& s, Branch branch) const {
  s.deferred = [this, &ctx = s.ctx, branch, rows = s.t.normed_for(branch)] { of(branch).column_weight(ctx, rows); };
  if (s.qkv_weight == QkvWeight::kEnqueue) std::exchange(s.deferred, {})();
}

void TransformerBlock::keep_row_gradient(const State& s, Branch branch) const {
  const LayerContext& ctx = s.ctx;
  const LayerWorkspace& w = ctx.work;
  const Tensor due = s.due->dbranch[static_cast<size_t>(branch)];
  const bool is_kept =
      !spec_.has_middle() && branch == kBranches.front();  // with the other branch's, which is the same
  if (spec_.is_local(branch)) {
    if (due.empty()) return;
    const Tensor local = ctx.local_rows(w.dbranch);
    return ctx.compute.copy(ctx.local_rows(due).data, local.data, local.bytes());
  }
  if (!spec_.fp8) {
    ctx.need(w.dbranch);
    if (!is_kept) ctx.compute.copy(due.data, w.dbranch.data, w.dbranch.bytes());
  } else if (ctx.tp.size() == 1) {
    if (!is_kept) ctx.compute.copy(due.data, w.fp8.dstream_t.data, due.bytes());
  } else {
    ctx.need(w.fp8.dstream);
    of(branch).row_linear().add_bias_gradient(ctx, ctx.local_rows(w.dbranch));
    if (!is_kept) ctx.fp8->transposed(w.fp8.dstream, due);
  }
}

void TransformerBlock::keep_column_input(const State& s, Branch branch) const {
  if (!spec_.is_local(branch)) s.ctx.need(s.t.normed_for(branch));
}

// Returns `kept` plus the recomputed tensors that backward reads. Of the norms, recomputes the one that is read first.
LayerTensors TransformerBlock::recomputed(const LayerContext& ctx, const LayerTensors& kept) const {
  if (ctx.config.parallel.recompute == Recompute::kFull) {
    State s{.ctx = ctx, .t = recomputed_tensors(ctx.work, spec_), .stream = {.inp = kept.input}};
    s.t.input = kept.input;
    if (!kept.moe.all_counts.empty()) s.t.moe.all_counts = kept.moe.all_counts;
    const bool repeats_all = spec_.output_norms() > 0 || spec_.has_experts();
    s.inner = repeats_all ? Inner::kForward : Inner::kAgain;
    const std::span<const TransferRegion> regions = block_order(spec_, Pass::kForward);
    // Backward reads no tensor of the last one, unless it is that of a norm of the output, or that of experts.
    run_forward(s, repeats_all ? regions : regions.first(regions.size() - 1));
    // In FP8, what the last GEMM read is then replaced by its transpose.
    if (repeats_all && spec_.fp8)
      for (const auto& branch : branches_) branch->recompute(ctx, s.t);
    return s.t;
  }
  LayerTensors t = with_workspace(kept, ctx.work, spec_);
  for (const auto& branch : branches_) branch->recompute(ctx, t);
  // Both norms share work.normed, so the second is computed only when it is needed.
  if (recomputes_norms(ctx)) recompute_rows(ctx, t, kBranches.back());
  return t;
}

}  // namespace tri
