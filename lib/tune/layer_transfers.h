// A layer's tensor-parallel transfers, each with the GEMMs that overlap it, for timing: the regions of the block's
// order (lib/model/block_order.h), run by the block itself, without attention, norms and activations.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "lib/engine/rank_tensors.h"
#include "lib/model/block_order.h"

namespace tri {

struct LayerTransfer {
  LinearPlace linear;  // whose overlap split is the transfer's
  Pass pass{};
  bool reduces = false;       // else it gathers
  bool takes_direct = false;  // OverlapSplit::direct
  std::string alongside;      // "fc1 forward"
  Tensor rows;                // (R, C)
  // Enqueue on the context's compute stream, which has waited for all of it afterwards.
  std::function<void(const LayerContext&)> alone, together;
};

// Of the first layer of the rank's first chunk, forward then backward; `parameters` are that chunk's. On the memory of
// a step, whatever stands there. What is returned refers to `parameters`.
std::vector<LayerTransfer> layer_transfers(const Config& config, const Mesh& mesh, const StageTensors& stage,
                                           const std::vector<Parameter>& parameters);

// The tensors of that layer, recomputed ones included.
LayerTensors first_layer(const Config& config, const Mesh& mesh, const StageTensors& stage);

}  // namespace tri
