// A layer's tensor-parallel transfers, each with the GEMMs that overlap it, for timing: the regions of the block's
// order (lib/model/block_order.h), run by the block itself without attention, norms and activations.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "lib/engine/rank_tensors.h"
#include "lib/model/block_order.h"

namespace tri {

struct LayerTransfer {
  LinearPlace linear;  // its overlap split is the transfer's
  Pass pass{};
  bool reduces = false;       // a reduce; otherwise a gather
  bool takes_direct = false;  // OverlapSplit::direct
  std::string alongside;      // "fc1 forward"
  Tensor rows;                // (R, C)
  // Enqueue work on the context's compute stream, which then waits for all of it.
  std::function<void(const LayerContext&)> alone, together;
};

// Returns the transfers of the first layer of the rank's first chunk, forward then backward. `parameters` are that
// chunk's; the result refers to them. Uses the memory of a step with arbitrary contents.
std::vector<LayerTransfer> layer_transfers(const Config& config, const Mesh& mesh, const StageTensors& stage,
                                           const std::vector<Parameter>& parameters);

// Returns the tensors of that layer, including recomputed ones.
LayerTensors first_layer(const Config& config, const Mesh& mesh, const StageTensors& stage);

}  // namespace tri
