#include "lib/model/block.h"

#include <cmath>
#include <utility>

#include "kernels/ops.h"

namespace tri {
namespace {

// RoPE on queries and keys, in place, where the model has it.
void rotate(const LayerContext& ctx, Pass pass, Tensor qkv) {
  if (ctx.config.model.position != Position::kRope) return;
  rope({.pass = pass, .qkv = qkv, .table = ctx.work.rope_table, .num_kv_heads = ctx.dims.NKVl, .group = ctx.dims.G},
       ctx.compute);
}

}  // namespace

TransformerBlock::TransformerBlock(int layer, const std::vector<Parameter>& parameters, const Config& config) {
  const std::string base = fmt::format("layers/{}/", layer);
  norm1_ = NormLayer::bind(parameters, base + "norm1");
  if (config.model.block == Block::kSequential) norm2_ = NormLayer::bind(parameters, base + "norm2");
  qkv_ = ColumnLinear::bind(Linear::kQkv, parameters, layer);
  proj_ = RowLinear::bind(Linear::kProj, parameters, layer);
  fc1_ = ColumnLinear::bind(Linear::kFc1, parameters, layer);
  fc2_ = RowLinear::bind(Linear::kFc2, parameters, layer);
}

ResidualStream TransformerBlock::forward(const LayerContext& ctx, ResidualStream stream, LayerTensors& t) const {
  const Workspace& w = ctx.work;
  forward_kept(ctx, stream, t);
  const auto partial = ctx.begin_reduce(w.partial, ctx.splits.of(Linear::kFc2, Pass::kForward));
  if (is_parallel(ctx)) proj_.forward(ctx, partial, t.attention, 0.0f, Then::kKeep);
  // One sum, one reduce for both branches.
  fc2_.forward(ctx, partial, t.activated, is_parallel(ctx) ? 1.0f : 0.0f, Then::kSend);
  return {.inp = is_parallel(ctx) ? t.input : t.middle,
          .add = ctx.finish_reduce(w.partial),
          .add_bias = fc2_.bias_to_add(ctx)};
}

// Everything that backward reads: the forward pass without its last product.
void TransformerBlock::forward_kept(const LayerContext& ctx, ResidualStream stream, LayerTensors& t) const {
  const Workspace& w = ctx.work;
  if (stream.add.empty()) t.input = stream.inp;
  norm1_.forward(ctx, stream, t.input, t.mean1, t.rstd1, t.normed1);
  attention_forward(ctx, t, t.normed1);
  if (is_parallel(ctx)) return mlp_forward(ctx, t, t.normed1);

  proj_.forward(ctx, ctx.begin_reduce(w.partial, ctx.splits.of(Linear::kProj, Pass::kForward)), t.attention, 0.0f,
                Then::kSend);
  const ResidualStream middle{.inp = t.input, .add = ctx.finish_reduce(w.partial), .add_bias = proj_.bias_to_add(ctx)};
  norm2_.forward(ctx, middle, t.middle, t.mean2, t.rstd2, t.normed2);
  mlp_forward(ctx, t, t.normed2);
}

void TransformerBlock::attention_forward(const LayerContext& ctx, const LayerTensors& t, Tensor normed) const {
  const StageDims& d = ctx.dims;
  qkv_.forward(ctx, t.qkv, normed);
  rotate(ctx, Pass::kForward, t.qkv);
  tri::attention_forward({.out = t.attention,
                          .lse = t.lse,
                          .qkv = t.qkv,
                          .seq_len = d.T,
                          .num_kv_heads = d.NKVl,
                          .group = d.G,
                          .window = ctx.config.model.window,
                          .scale = 1.0f / std::sqrt(static_cast<float>(d.HS)),
                          .kernel = ctx.config.model.attention},
                         ctx.compute);
}

void TransformerBlock::mlp_forward(const LayerContext& ctx, const LayerTensors& t, Tensor normed) const {
  if (ctx.config.model.activation == Activation::kGelu) return fc1_.forward_gelu(ctx, t.activated, t.fc1, normed);
  fc1_.forward(ctx, t.fc1, normed);
  activation_forward({.kind = ctx.config.model.activation, .out = t.activated, .inp = t.fc1}, ctx.compute);
}

void TransformerBlock::backward(const LayerContext& ctx, const LayerTensors& kept, Tensor dinput, WeightGradient& later,
                                Leaves leaves) const {
  ctx.gather(ctx.work.dstream);  // every row of the output's gradient, for the row-parallel products
  if (later) std::exchange(later, {})();
  const LayerTensors t = again(ctx, kept);
  if (is_parallel(ctx))
    backward_parallel(ctx, t, dinput, later, leaves);
  else
    backward_sequential(ctx, t, dinput, later, leaves);
}

// `kept` and what backward reads besides, computed again. Of the norms those whose rows are read first.
LayerTensors TransformerBlock::again(const LayerContext& ctx, const LayerTensors& kept) const {
  if (ctx.config.parallel.recompute == Recompute::kFull) {
    LayerTensors t = ctx.work.again;
    forward_kept(ctx, {.inp = kept.input}, t);
    return t;
  }
  LayerTensors t = with_workspace(kept, ctx.work);
  if (kept.activated.empty())
    activation_forward({.kind = ctx.config.model.activation, .out = t.activated, .inp = t.fc1}, ctx.compute);
  // work.normed serves both norms, one after the other: the second is made where its turn comes.
  if (kept.normed1.empty() && is_parallel(ctx))
    norm1_.forward(ctx, {.inp = t.input}, {}, t.mean1, t.rstd1, t.normed1);
  else if (kept.normed1.empty())
    norm2_.forward(ctx, {.inp = t.middle}, {}, t.mean2, t.rstd2, t.normed2);
  return t;
}

// A weight gradient beside each of the four transfers, the last one beside the next layer's first. What one reads is
// overwritten after its transfer at the earliest.
void TransformerBlock::backward_sequential(const LayerContext& ctx, const LayerTensors& t, Tensor dinput,
                                           WeightGradient& later, Leaves leaves) const {
  const Workspace& w = ctx.work;
  const Tensor dstream = ctx.own_rows(w.dstream);
  mlp_backward(ctx, t);
  fc1_.backward_input(ctx, ctx.begin_reduce(w.dnormed, ctx.splits.of(Linear::kFc1, Pass::kBackward)), w.dfc1, 0.0f,
                      Then::kSend);
  fc2_.backward_weight(ctx, w.dstream, t.activated);  // beside the reduce
  norm2_.backward(ctx, dstream, dstream, ctx.finish_reduce(w.dnormed), t.middle, t.mean2, t.rstd2);

  ctx.gather(w.dstream);
  fc1_backward_weight(ctx, t.normed2);  // beside the gather
  if (t.normed1.data == w.normed.data)  // made again
    norm1_.forward(ctx, {.inp = t.input}, {}, t.mean1, t.rstd1, t.normed1);
  attention_backward(ctx, t);
  qkv_.backward_input(ctx, ctx.begin_reduce(w.dnormed, ctx.splits.of(Linear::kQkv, Pass::kBackward)), w.dqkv, 0.0f,
                      Then::kSend);
  proj_.backward_weight(ctx, w.dstream, t.attention);  // beside the reduce
  leave_qkv_weight(ctx, t.normed1, later, leaves);
  norm1_.backward(ctx, dinput, dstream, ctx.finish_reduce(w.dnormed), t.input, t.mean1, t.rstd1);
}

void TransformerBlock::backward_parallel(const LayerContext& ctx, const LayerTensors& t, Tensor dinput,
                                         WeightGradient& later, Leaves leaves) const {
  const Workspace& w = ctx.work;
  mlp_backward(ctx, t);
  const auto dnormed = ctx.begin_reduce(w.dnormed, ctx.splits.of(Linear::kQkv, Pass::kBackward));
  fc1_.backward_input(ctx, dnormed, w.dfc1, 0.0f, Then::kKeep);
  attention_backward(ctx, t);
  qkv_.backward_input(ctx, dnormed, w.dqkv, 1.0f, Then::kSend);  // both branches into one sum, one reduce
  fc2_.backward_weight(ctx, w.dstream, t.activated);             // all beside the reduce
  fc1_backward_weight(ctx, t.normed1);
  proj_.backward_weight(ctx, w.dstream, t.attention);
  leave_qkv_weight(ctx, t.normed1, later, leaves);
  norm1_.backward(ctx, dinput, ctx.own_rows(w.dstream), ctx.finish_reduce(w.dnormed), t.input, t.mean1, t.rstd1);
}

void TransformerBlock::leave_qkv_weight(const LayerContext& ctx, Tensor inp, WeightGradient& later,
                                        Leaves leaves) const {
  const auto gradient = [this, &ctx, inp] { qkv_.backward_weight(ctx, ctx.work.dqkv, inp); };
  if (leaves == Leaves::kWork)
    later = gradient;
  else
    gradient();
}

// From the gathered gradient in work.dstream to work.dfc1.
void TransformerBlock::mlp_backward(const LayerContext& ctx, const LayerTensors& t) const {
  const Workspace& w = ctx.work;
  if (ctx.config.model.activation == Activation::kGelu)
    return fc2_.backward_input_gelu(ctx, w.dfc1, w.dstream, t.fc1, fc1_);
  fc2_.backward_input(ctx, w.dactivated, w.dstream);
  activation_backward({.kind = ctx.config.model.activation, .dinp = w.dfc1, .dout = w.dactivated, .inp = t.fc1},
                      ctx.compute);
}

void TransformerBlock::fc1_backward_weight(const LayerContext& ctx, Tensor inp) const {
  if (ctx.config.model.activation == Activation::kGelu) return fc1_.backward_weight_alone(ctx, ctx.work.dfc1, inp);
  fc1_.backward_weight(ctx, ctx.work.dfc1, inp);
}

// From the gathered gradient in work.dstream to work.dqkv.
void TransformerBlock::attention_backward(const LayerContext& ctx, const LayerTensors& t) const {
  const Workspace& w = ctx.work;
  const StageDims& d = ctx.dims;
  proj_.backward_input(ctx, w.dattention, w.dstream);
  tri::attention_backward({.dqkv = w.dqkv,
                           .delta = w.delta,
                           .dout = w.dattention,
                           .out = t.attention,
                           .lse = t.lse,
                           .qkv = t.qkv,
                           .seq_len = d.T,
                           .num_kv_heads = d.NKVl,
                           .group = d.G,
                           .window = ctx.config.model.window,
                           .scale = 1.0f / std::sqrt(static_cast<float>(d.HS)),
                           .kernel = ctx.config.model.attention},
                          ctx.compute);
  rotate(ctx, Pass::kBackward, w.dqkv);
}

}  // namespace tri
