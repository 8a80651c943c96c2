#include "lib/tune/layer_transfers.h"

namespace tri {
namespace {

using Blocks = std::vector<RowBlock>;

// A layer's products on given memory.
struct Products {
  ColumnLinear qkv, fc1;
  RowLinear proj, fc2;
  LayerTensors t;
  bool gelu;

  void qkv_forward(const LayerContext& ctx) const { qkv.forward(ctx, t.qkv, t.normed1); }
  void fc1_forward(const LayerContext& ctx, Tensor normed) const {
    if (gelu) return fc1.forward_gelu(ctx, t.activated, t.fc1, normed);
    fc1.forward(ctx, t.fc1, normed);
  }
  void fc2_backward(const LayerContext& ctx) const {
    if (gelu) return fc2.backward_input_gelu(ctx, ctx.work.dfc1, ctx.work.dstream, t.fc1, fc1);
    fc2.backward_input(ctx, ctx.work.dactivated, ctx.work.dstream);
  }
  void proj_backward(const LayerContext& ctx) const { proj.backward_input(ctx, ctx.work.dattention, ctx.work.dstream); }
  void qkv_weight(const LayerContext& ctx) const { qkv.backward_weight(ctx, ctx.work.dqkv, t.normed1); }
  void proj_weight(const LayerContext& ctx) const { proj.backward_weight(ctx, ctx.work.dstream, t.attention); }
  void fc1_weight(const LayerContext& ctx, Tensor normed) const {
    if (gelu) return fc1.backward_weight_alone(ctx, ctx.work.dfc1, normed);
    fc1.backward_weight(ctx, ctx.work.dfc1, normed);
  }
  void fc2_weight(const LayerContext& ctx) const { fc2.backward_weight(ctx, ctx.work.dstream, t.activated); }
};

LayerTransfer gather(Linear linear, Pass pass, const std::string& beside, Tensor rows,
                     const std::function<void(const LayerContext&)>& products) {
  return {.linear = linear,
          .pass = pass,
          .beside = beside,
          .rows = rows,
          .alone =
              [=](const LayerContext& ctx) {
                ctx.gather(rows);
                ctx.need(rows);
              },
          .together =
              [=](const LayerContext& ctx) {
                ctx.gather(rows);
                products(ctx);
              }};
}

// `products` make and send the blocks.
LayerTransfer reduce(Linear linear, Pass pass, const std::string& beside, Tensor rows,
                     const std::function<void(const LayerContext&, const Blocks&)>& products) {
  return {.linear = linear,
          .pass = pass,
          .reduces = true,
          .takes_direct = true,
          .beside = beside,
          .rows = rows,
          .alone =
              [=](const LayerContext& ctx) {
                for (const RowBlock& block : ctx.begin_reduce(rows, {})) ctx.send(block);
                ctx.finish_reduce(rows);
              },
          .together =
              [=](const LayerContext& ctx) {
                products(ctx, ctx.begin_reduce(rows, ctx.splits.of(linear, pass)));
                ctx.finish_reduce(rows);
              }};
}

std::vector<LayerTransfer> sequential(const Products& p, const Workspace& w) {
  return {gather(Linear::kQkv, Pass::kForward, "qkv forward", p.t.normed1,
                 [p](const LayerContext& ctx) { p.qkv_forward(ctx); }),
          reduce(Linear::kProj, Pass::kForward, "proj forward", w.partial,
                 [p](const LayerContext& ctx, const Blocks& blocks) {
                   p.proj.forward(ctx, blocks, p.t.attention, 0.0f, Then::kSend);
                 }),
          gather(Linear::kFc1, Pass::kForward, "fc1 forward", p.t.normed2,
                 [p](const LayerContext& ctx) { p.fc1_forward(ctx, p.t.normed2); }),
          reduce(Linear::kFc2, Pass::kForward, "fc2 forward", w.partial,
                 [p](const LayerContext& ctx, const Blocks& blocks) {
                   p.fc2.forward(ctx, blocks, p.t.activated, 0.0f, Then::kSend);
                 }),
          gather(Linear::kFc2, Pass::kBackward, "qkv weight, fc2 backward", w.dstream,
                 [p](const LayerContext& ctx) {
                   p.qkv_weight(ctx);  // the layer above's
                   p.fc2_backward(ctx);
                 }),
          reduce(Linear::kFc1, Pass::kBackward, "fc1 backward, fc2 weight", w.dnormed,
                 [p](const LayerContext& ctx, const Blocks& blocks) {
                   p.fc1.backward_input(ctx, blocks, ctx.work.dfc1, 0.0f, Then::kSend);
                   p.fc2_weight(ctx);
                 }),
          gather(Linear::kProj, Pass::kBackward, "fc1 weight, proj backward", w.dstream,
                 [p](const LayerContext& ctx) {
                   p.fc1_weight(ctx, p.t.normed2);
                   p.proj_backward(ctx);
                 }),
          reduce(Linear::kQkv, Pass::kBackward, "qkv backward, proj weight", w.dnormed,
                 [p](const LayerContext& ctx, const Blocks& blocks) {
                   p.qkv.backward_input(ctx, blocks, ctx.work.dqkv, 0.0f, Then::kSend);
                   p.proj_weight(ctx);
                 })};
}

// Both branches share a gather and a reduce; the product that sends is the second one, which adds to the first.
std::vector<LayerTransfer> parallel(const Products& p, const Workspace& w) {
  std::vector<LayerTransfer> transfers = {
      gather(Linear::kQkv, Pass::kForward, "qkv, fc1 forward", p.t.normed1,
             [p](const LayerContext& ctx) {
               p.qkv_forward(ctx);
               p.fc1_forward(ctx, p.t.normed1);
             }),
      reduce(Linear::kFc2, Pass::kForward, "proj, fc2 forward", w.partial,
             [p](const LayerContext& ctx, const Blocks& blocks) {
               p.proj.forward(ctx, blocks, p.t.attention, 0.0f, Then::kKeep);
               p.fc2.forward(ctx, blocks, p.t.activated, 1.0f, Then::kSend);
             }),
      gather(Linear::kFc2, Pass::kBackward, "qkv weight, fc2, proj backward", w.dstream,
             [p](const LayerContext& ctx) {
               p.qkv_weight(ctx);  // the layer above's
               p.fc2_backward(ctx);
               p.proj_backward(ctx);
             }),
      reduce(Linear::kQkv, Pass::kBackward, "fc1, qkv backward, weights", w.dnormed,
             [p](const LayerContext& ctx, const Blocks& blocks) {
               p.fc1.backward_input(ctx, blocks, ctx.work.dfc1, 0.0f, Then::kKeep);
               p.qkv.backward_input(ctx, blocks, ctx.work.dqkv, 1.0f, Then::kSend);
               p.fc2_weight(ctx);
               p.fc1_weight(ctx, p.t.normed1);
               p.proj_weight(ctx);
             })};
  for (LayerTransfer& transfer : transfers) transfer.takes_direct = false;
  return transfers;
}

}  // namespace

LayerTensors first_layer(const Config& config, const StageTensors& stage) {
  if (config.parallel.recompute == Recompute::kFull) return stage.work.again;
  return with_workspace(stage.chunks.front().front().layers.front(), stage.work);
}

std::vector<LayerTransfer> layer_transfers(const Config& config, const Mesh& mesh, const StageTensors& stage,
                                           const std::vector<Parameter>& parameters) {
  const int layer = layers_of(config, mesh.pp, 0).first;
  const Products products{.qkv = ColumnLinear::bind(Linear::kQkv, parameters, layer),
                          .fc1 = ColumnLinear::bind(Linear::kFc1, parameters, layer),
                          .proj = RowLinear::bind(Linear::kProj, parameters, layer),
                          .fc2 = RowLinear::bind(Linear::kFc2, parameters, layer),
                          .t = first_layer(config, stage),
                          .gelu = config.model.activation == Activation::kGelu};
  return config.model.block == Block::kParallel ? parallel(products, stage.work) : sequential(products, stage.work);
}

}  // namespace tri
