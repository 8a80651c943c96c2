// A layer's tensor-parallel transfers, each with the products that run beside it: the layers' own code in the order of
// lib/model/block.cpp, for those who time it. Attention, norms and activations are left out.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "lib/engine/rank_tensors.h"
#include "lib/model/layers.h"

namespace tri {

struct LayerTransfer {
  Linear linear{};  // whose split is the transfer's
  Pass pass{};
  bool reduces = false;  // else it gathers
  bool takes_direct = false;
  std::string beside;  // "fc1 forward"
  Tensor rows;         // (R, C)
  // Enqueue on the context's compute stream, which has waited for all of it afterwards.
  std::function<void(const LayerContext&)> alone, together;
};

// Of the first layer of the rank's first chunk; `parameters` are that chunk's. On the memory of a step, whatever stands
// there. What is returned refers to `parameters`.
std::vector<LayerTransfer> layer_transfers(const Config& config, const Mesh& mesh, const StageTensors& stage,
                                           const std::vector<Parameter>& parameters);

// The tensors of the first layer, those computed again included.
LayerTensors first_layer(const Config& config, const StageTensors& stage);

}  // namespace tri
