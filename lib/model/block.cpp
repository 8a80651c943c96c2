#include "lib/model/block.h"

#include <cmath>
#include <utility>

#include "kernels/ops.h"

namespace tri {

// A pass under way.
struct TransformerBlock::State {
  const LayerContext& ctx;
  LayerTensors t;
  ResidualStream stream = {};       // forward: what the next norm reads, in the end what the pass hands on
  std::vector<RowBlock> sums = {};  // the blocks of the reduce under way
  // Backward.
  Tensor dinput = {};
  WeightGradient deferred = {};
  QkvWeight qkv_weight = QkvWeight::kDefer;
  Activate activate = Activate::kForward;
};

TransformerBlock::TransformerBlock(int layer, const std::vector<Parameter>& parameters, const Config& config)
    : layer_(layer), block_(config.model.block), is_fp8_(is_fp8_layer(config, layer)) {
  norm1_ = NormLayer::bind(parameters, modules::kNorm1, layer);
  if (block_ == Block::kSequential) norm2_ = NormLayer::bind(parameters, modules::kNorm2, layer);
  norm1_.reader = Linear::kQkv;
  norm2_.reader = Linear::kFc1;
  qkv_ = ColumnLinear::bind(Linear::kQkv, parameters, layer);
  proj_ = RowLinear::bind(Linear::kProj, parameters, layer);
  fc1_ = ColumnLinear::bind(Linear::kFc1, parameters, layer);
  fc2_ = RowLinear::bind(Linear::kFc2, parameters, layer);
}

ResidualStream TransformerBlock::forward(const LayerContext& ctx, ResidualStream stream, LayerTensors& t) const {
  if (stream.add.empty()) t.input = stream.inp;
  State s{.ctx = ctx, .t = t, .stream = stream};
  run_forward(s, block_order(block_, Pass::kForward));
  return s.stream;
}

void TransformerBlock::run_forward(State& s, std::span<const TransferRegion> regions) const {
  const LayerContext& ctx = s.ctx;
  for (const TransferRegion& region : regions) {
    const Tensor rows = region.rows(ctx.work, s.t);
    if (region.reduces())
      s.sums = ctx.begin_reduce(rows, ctx.splits.of(region.linear, region.pass));
    else
      gather_norm(s, region.linear);
    for (const BlockStep step : region.steps) run(s, step);
    if (!region.reduces()) continue;
    const bool attention_alone = region.linear == Linear::kProj;
    s.stream = {.inp = attention_alone || is_parallel() ? s.t.input : s.t.middle,
                .add = ctx.finish_reduce(),
                .add_bias = (attention_alone ? proj_ : fc2_).bias_to_add(ctx)};
  }
}

void TransformerBlock::backward(const LayerContext& ctx, const LayerTensors& kept, Tensor dinput,
                                WeightGradient& deferred, QkvWeight qkv_weight) const {
  State s{.ctx = ctx, .t = kept, .dinput = dinput, .deferred = std::exchange(deferred, {}), .qkv_weight = qkv_weight};
  for (const TransferRegion& region : block_order(block_, Pass::kBackward)) {
    const Tensor rows = region.rows(ctx.work, s.t);
    if (region.reduces())
      s.sums = ctx.begin_reduce(rows, ctx.splits.of(region.linear, region.pass));
    else
      gather_gradient(s, region.linear);
    for (const BlockStep step : region.steps) run(s, step);
    if (region.reduces()) norm_backward(s, region.linear);
  }
  deferred = std::move(s.deferred);
}

void TransformerBlock::run_gemms(const TransferRegion& region, const LayerContext& ctx, const LayerTensors& t,
                                 const std::vector<RowBlock>& sums) const {
  State s{.ctx = ctx, .t = t, .sums = sums};
  defer_qkv_weight(s);
  for (const BlockStep step : region.steps)
    if (is_gemm(step)) run(s, step);
}

void TransformerBlock::run(State& s, BlockStep step) const {
  const LayerContext& ctx = s.ctx;
  const LayerWorkspace& w = ctx.work;
  const LayerTensors& t = s.t;
  const ModelConfig& model = ctx.config.model;
  switch (step) {
    case BlockStep::kQkvForward:
      return qkv_.forward(ctx, rope_input(ctx, t.qkv), t.normed1);
    case BlockStep::kAttentionForward:
      return attention_forward(ctx, t);
    case BlockStep::kProjForward:
      return proj_.forward(ctx, s.sums, is_fp8_ ? w.fp8.attention : t.attention, 0.0f,
                           is_parallel() ? Then::kKeep : Then::kSend);
    case BlockStep::kFc1Forward:
      return fc1_forward(ctx, t);
    case BlockStep::kActivationForward:
      if (model.activation == Activation::kGelu && !is_fp8_) return;
      return activate(ctx, t, s.activate);
    case BlockStep::kFc2Forward:
      return fc2_.forward(ctx, s.sums, is_fp8_ ? w.fp8.activated : t.activated, is_parallel() ? 1.0f : 0.0f,
                          Then::kSend);

    case BlockStep::kDeferredQkvWeight:
      if (s.deferred) std::exchange(s.deferred, {})();
      return;
    case BlockStep::kRecompute:
      s.t = recomputed(ctx, t);
      return;
    case BlockStep::kFc2Input:
      return fc2_input(ctx, t);
    case BlockStep::kActivationBackward:
      if (model.activation == Activation::kGelu && !is_fp8_) return;
      return activation_backward(ctx, t);
    case BlockStep::kFc1Input:
      return fc1_.backward_input(ctx, s.sums, is_fp8_ ? w.fp8.dfc1 : w.dfc1, 0.0f,
                                 is_parallel() ? Then::kKeep : Then::kSend);
    case BlockStep::kFc2Weight:
      return fc2_weight(ctx, t);
    case BlockStep::kFc1Weight:
      return fc1_weight(ctx, t);
    case BlockStep::kRecomputeNorm1:
      if (t.normed1.data == (is_fp8_ ? w.fp8.normed : w.normed).data)
        norm1_.forward(ctx, {.inp = t.input}, {}, t.mean1, t.rstd1, t.normed1);
      return;
    case BlockStep::kProjInput:
      return proj_.backward_input(ctx, w.dattention, is_fp8_ ? w.fp8.dstream : w.dstream);
    case BlockStep::kAttentionBackward:
      return attention_backward(ctx, t);
    case BlockStep::kQkvInput:
      return qkv_.backward_input(ctx, s.sums, is_fp8_ ? w.fp8.dqkv : w.dqkv, is_parallel() ? 1.0f : 0.0f, Then::kSend);
    case BlockStep::kProjWeight:
      return proj_weight(ctx, t);
    case BlockStep::kDeferQkvWeight:
      return defer_qkv_weight(s);
  }
}

void TransformerBlock::gather_norm(State& s, Linear linear) const {
  const LayerTensors& t = s.t;
  if (linear == Linear::kQkv) return norm1_.forward(s.ctx, s.stream, t.input, t.mean1, t.rstd1, t.normed1);
  norm2_.forward(s.ctx, s.stream, t.middle, t.mean2, t.rstd2, t.normed2);
}

void TransformerBlock::gather_gradient(State& s, Linear linear) const {
  const LayerContext& ctx = s.ctx;
  const LayerWorkspace& w = ctx.work;
  if (!is_fp8_) return ctx.gather(w.dstream);
  if (ctx.tp.size() == 1) {  // all rows are here: the transpose and the bias' gradient by the same pass
    const RowLinear& reader = linear == Linear::kProj ? proj_ : fc2_;
    ctx.fp8->cast(Fp8Operand::kGradient, layer_, linear, w.dstream, w.fp8.dstream, w.fp8.dstream_t,
                  reader.bias_gradient(ctx));
    return reader.bias_gradient_ready(ctx);
  }
  ctx.begin_gather(w.fp8.dstream);
  ctx.fp8->cast(Fp8Operand::kGradient, layer_, linear, ctx.local_rows(w.dstream), ctx.local_rows(w.fp8.dstream));
  ctx.start_gather(w.fp8.dstream);
}

// The transpose of a gathered norm, for the weight gradient of the linear that has read it.
Tensor TransformerBlock::transpose_norm(const LayerContext& ctx, Tensor rows) const {
  ctx.need(rows);
  return ctx.fp8->transposed(rows, ctx.work.fp8.input_transpose);
}

// The transpose of the gathered gradient of the residual stream, for the weight gradient of `linear`. Without tp,
// gather_gradient has made it, and added to the bias' gradient, once for both linears of a parallel block.
Tensor TransformerBlock::transpose_dstream(const LayerContext& ctx, const RowLinear& linear) const {
  const LayerWorkspace& w = ctx.work;
  ctx.need(w.fp8.dstream);
  const bool is_made = ctx.tp.size() == 1;
  if (!is_made || (is_parallel() && linear.linear == Linear::kProj))
    linear.add_bias_gradient(ctx, ctx.local_rows(w.dstream));
  return is_made ? w.fp8.dstream_t : ctx.fp8->transposed(w.fp8.dstream, w.fp8.dstream_t);
}

void TransformerBlock::norm_backward(State& s, Linear linear) const {
  const LayerContext& ctx = s.ctx;
  const LayerTensors& t = s.t;
  const Tensor dstream = ctx.local_rows(ctx.work.dstream), dnormed = ctx.finish_reduce();
  if (linear == Linear::kQkv) return norm1_.backward(ctx, s.dinput, dstream, dnormed, t.input, t.mean1, t.rstd1);
  norm2_.backward(ctx, dstream, dstream, dnormed, t.middle, t.mean2, t.rstd2);
}

void TransformerBlock::rotate(const LayerContext& ctx, Pass pass, Tensor out, Tensor inp) const {
  const StageDims& d = ctx.dims;
  if (ctx.config.model.position != Position::kRope) return;
  const bool forward = pass == Pass::kForward;
  rope({.pass = pass,
        .out = out,
        .inp = inp,
        .table = ctx.work.rope_table,
        .num_kv_heads = d.NKVl,
        .group = d.G,
        .out_order = forward ? d.order : QkvOrder::kGrouped,
        .inp_order = forward ? QkvOrder::kGrouped : d.order},
       ctx.compute);
}

Tensor TransformerBlock::rope_input(const LayerContext& ctx, Tensor out) const {
  return ctx.dims.order == QkvOrder::kGrouped ? out : ctx.work.rope_input;
}

void TransformerBlock::attention_forward(const LayerContext& ctx, const LayerTensors& t) const {
  const StageDims& d = ctx.dims;
  rotate(ctx, Pass::kForward, t.qkv, rope_input(ctx, t.qkv));
  tri::attention_forward({.out = t.attention,
                          .lse = t.lse,
                          .qkv = t.qkv,
                          .order = d.order,
                          .seq_len = d.T,
                          .num_kv_heads = d.NKVl,
                          .group = d.G,
                          .window = ctx.config.model.window,
                          .scale = 1.0f / std::sqrt(static_cast<float>(d.HS)),
                          .kernel = ctx.config.model.attention},
                         ctx.compute);
  if (is_fp8_) ctx.fp8->cast(Fp8Operand::kInput, layer_, Linear::kProj, t.attention, ctx.work.fp8.attention);
}

// From work.dattention to work.dqkv, and its FP8 casts.
void TransformerBlock::attention_backward(const LayerContext& ctx, const LayerTensors& t) const {
  const LayerWorkspace& w = ctx.work;
  const StageDims& d = ctx.dims;
  const Tensor dqkv = rope_input(ctx, w.dqkv);
  tri::attention_backward({.dqkv = dqkv,
                           .delta = w.delta,
                           .dout = w.dattention,
                           .out = t.attention,
                           .lse = t.lse,
                           .qkv = t.qkv,
                           .order = d.order,
                           .seq_len = d.T,
                           .num_kv_heads = d.NKVl,
                           .group = d.G,
                           .window = ctx.config.model.window,
                           .scale = 1.0f / std::sqrt(static_cast<float>(d.HS)),
                           .kernel = ctx.config.model.attention,
                           .deterministic = ctx.config.run.deterministic},
                          ctx.compute);
  rotate(ctx, Pass::kBackward, w.dqkv, dqkv);
  if (!is_fp8_) return;
  ctx.fp8->cast(Fp8Operand::kGradient, layer_, Linear::kQkv, w.dqkv, w.fp8.dqkv, w.fp8.dqkv_t, qkv_.bias_gradient(ctx));
  qkv_.bias_gradient_ready(ctx);
}

void TransformerBlock::fc1_forward(const LayerContext& ctx, const LayerTensors& t) const {
  const Tensor normed = mlp_input(t);
  if (ctx.config.model.activation == Activation::kGelu && !is_fp8_)
    return fc1_.forward_gelu(ctx, t.activated, t.fc1, normed);
  fc1_.forward(ctx, t.fc1, normed);
}

// From t.fc1 to t.activated. In FP8 forward to the rows, which fc2 reads, and to the transpose where it is kept; again
// in a backward pass to the transpose alone.
void TransformerBlock::activate(const LayerContext& ctx, const LayerTensors& t, Activate when) const {
  if (is_fp8_) {
    const bool again = when == Activate::kAgain;
    const bool transposes = again || keeps_activated(ctx.config.parallel.recompute);
    return ctx.fp8->activation_forward(layer_, again ? Tensor{} : t.activated, transposes ? t.activated_t : Tensor{},
                                       t.fc1, dactivated(ctx));
  }
  activation_forward({.kind = ctx.config.model.activation, .out = t.activated, .inp = t.fc1}, ctx.compute);
}

// From the gathered gradient of the stream to work.dfc1 (GeLU) or work.dactivated. FP8 GEMMs leave GeLU's gradient to
// activation_backward.
void TransformerBlock::fc2_input(const LayerContext& ctx, const LayerTensors& t) const {
  const LayerWorkspace& w = ctx.work;
  if (is_fp8_) return fc2_.backward_input(ctx, dactivated(ctx), w.fp8.dstream);
  if (ctx.config.model.activation == Activation::kGelu)
    return fc2_.backward_input_gelu(ctx, w.dfc1, w.dstream, t.fc1, fc1_);
  fc2_.backward_input(ctx, w.dactivated, w.dstream);
}

// (R, Fl): of GeLU in the place of its own gradient.
Tensor TransformerBlock::dactivated(const LayerContext& ctx) const {
  return ctx.config.model.activation == Activation::kGelu ? ctx.work.dfc1 : ctx.work.dactivated;
}

// To work.dfc1, or its FP8 casts and the gradient of fc1's bias.
void TransformerBlock::activation_backward(const LayerContext& ctx, const LayerTensors& t) const {
  const LayerWorkspace& w = ctx.work;
  const Tensor dout = dactivated(ctx);
  if (!is_fp8_)
    return tri::activation_backward({.kind = ctx.config.model.activation, .dinp = w.dfc1, .dout = dout, .inp = t.fc1},
                                    ctx.compute);
  ctx.fp8->activation_backward(layer_, w.fp8.dfc1, w.fp8.dfc1_t, fc1_.bias_gradient(ctx), dout, t.fc1, w.dfc1);
  fc1_.bias_gradient_ready(ctx);
}

void TransformerBlock::fc1_weight(const LayerContext& ctx, const LayerTensors& t) const {
  const LayerWorkspace& w = ctx.work;
  const Tensor normed = mlp_input(t);
  if (is_fp8_) return fc1_.backward_weight_fp8(ctx, w.fp8.dfc1_t, transpose_norm(ctx, normed));
  if (ctx.config.model.activation == Activation::kGelu) return fc1_.backward_weight_alone(ctx, w.dfc1, normed);
  fc1_.backward_weight(ctx, w.dfc1, normed);
}

void TransformerBlock::fc2_weight(const LayerContext& ctx, const LayerTensors& t) const {
  const LayerWorkspace& w = ctx.work;
  if (!is_fp8_) return fc2_.backward_weight(ctx, w.dstream, t.activated);
  fc2_.backward_weight_fp8(ctx, transpose_dstream(ctx, fc2_), t.activated_t);
}

void TransformerBlock::proj_weight(const LayerContext& ctx, const LayerTensors& t) const {
  const LayerWorkspace& w = ctx.work;
  if (!is_fp8_) return proj_.backward_weight(ctx, w.dstream, t.attention);
  const Tensor dout_t = transpose_dstream(ctx, proj_);
  proj_.backward_weight_fp8(ctx, dout_t,
                            ctx.fp8->cast_transposed(layer_, Linear::kProj, t.attention, w.fp8.input_transpose));
}

void TransformerBlock::defer_qkv_weight(State& s) const {
  s.deferred = [this, &ctx = s.ctx, inp = s.t.normed1] {
    const LayerWorkspace& w = ctx.work;
    if (is_fp8_) return qkv_.backward_weight_fp8(ctx, w.fp8.dqkv_t, transpose_norm(ctx, inp));
    qkv_.backward_weight(ctx, w.dqkv, inp);
  };
  if (s.qkv_weight == QkvWeight::kEnqueue) std::exchange(s.deferred, {})();
}

// `kept`, and what backward reads besides: recomputed. Of the norms those whose rows are read first.
LayerTensors TransformerBlock::recomputed(const LayerContext& ctx, const LayerTensors& kept) const {
  if (ctx.config.parallel.recompute == Recompute::kFull) {
    State s{.ctx = ctx, .t = recomputed_tensors(ctx.work, is_fp8_), .stream = {.inp = kept.input}};
    s.t.input = kept.input;
    s.activate = Activate::kAgain;
    const std::span<const TransferRegion> regions = block_order(block_, Pass::kForward);
    run_forward(s, regions.first(regions.size() - 1));  // backward reads nothing of the last one
    return s.t;
  }
  LayerTensors t = with_workspace(kept, ctx.work, is_fp8_);
  if (!keeps_activated(ctx.config.parallel.recompute)) activate(ctx, t, Activate::kAgain);
  // work.normed serves both norms, one after the other: the second is made where its turn comes.
  if (kept.normed1.empty() && is_parallel())
    norm1_.forward(ctx, {.inp = t.input}, {}, t.mean1, t.rstd1, t.normed1);
  else if (kept.normed1.empty())
    norm2_.forward(ctx, {.inp = t.middle}, {}, t.mean2, t.rstd2, t.normed2);
  return t;
}

}  // namespace tri
