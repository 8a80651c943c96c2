#include "lib/tune/layer_transfers.h"

#include <memory>

#include "lib/model/block.h"
#include "lib/model/layer_division.h"

namespace tri {
namespace {

void transfer_alone(const LayerContext& ctx, bool reduces, Tensor rows) {
  if (reduces) {
    for (const RowBlock& block : ctx.begin_reduce(rows, {})) ctx.send(block);
    ctx.finish_reduce();
  } else {
    ctx.gather(rows);
    ctx.need(rows);
  }
}

void transfer_with_gemms(const LayerContext& ctx, const TransformerBlock& block, const TransferRegion& region,
                         const LayerTensors& t) {
  const Tensor rows = region.rows(ctx.work, t);
  if (region.reduces()) {
    block.run_gemms(region, ctx, t, ctx.begin_reduce(rows, ctx.splits.of(region.linear, region.pass)));
    ctx.finish_reduce();
  } else {
    ctx.gather(rows);
    block.run_gemms(region, ctx, t, {});
  }
}

}  // namespace

LayerTensors first_layer(const Config& config, const Mesh& mesh, const StageTensors& stage) {
  const LayerTensors& layer = stage.chunks.front().front().layers.front();
  const LayerSpec spec = layers_of_model(config)[layers_of(config, mesh.axis("pp"), 0).first];
  if (config.parallel.recompute == Recompute::kFull) return recomputed_tensors(stage.work, spec);
  return with_workspace(layer, stage.work, spec);
}

std::vector<LayerTransfer> layer_transfers(const Config& config, const Mesh& mesh, const StageTensors& stage,
                                           const std::vector<Parameter>& parameters) {
  const int first = layers_of(config, mesh.axis("pp"), 0).first;
  const auto block = std::make_shared<TransformerBlock>(first, parameters, config);
  const LayerSpec layer = layers_of_model(config)[first];
  const LayerTensors t = first_layer(config, mesh, stage);
  std::vector<LayerTransfer> transfers;
  for (const Pass pass : {Pass::kForward, Pass::kBackward})
    for (const TransferRegion& region : block_order(layer, pass)) {
      if (layer.is_local(region.linear.branch)) continue;
      const bool reduces = region.reduces();
      const Tensor rows = region.rows(stage.work, t);
      transfers.push_back(
          {.linear = region.linear,
           .pass = pass,
           .reduces = reduces,
           // In the parallel block the GEMM that sends adds to the sums that another one has written to local memory.
           .takes_direct = reduces && region.has_one_summand(),
           .alongside = gemm_names(region, layer),
           .rows = rows,
           .alone = [=](const LayerContext& ctx) { transfer_alone(ctx, reduces, rows); },
           .together = [=, &region](const LayerContext& ctx) { transfer_with_gemms(ctx, *block, region, t); }});
    }
  return transfers;
}

}  // namespace tri
