// The timed search for the matrix products of a rank, and its memory in the run folder.
#pragma once

#include <string>

#include "lib/comm/job.h"
#include "lib/config/config.h"
#include "lib/engine/rank_tensors.h"
#include "lib/model/layers.h"
#include "lib/optim/parameter_store.h"

namespace tri {

// Finds the products of a step by walking through the stage without doing anything, and times those without a choice.
// All ranks end with the same choices: first what `file` holds (may be absent; "" = none), then the lowest world
// rank's. World rank 0 writes them to `file` if its folder is there. Scribbles over activations, weights and gradients:
// to be called before they get their start values. `splits`: of products beside transfers; null: all are whole.
// Collective; does nothing where the device has no search.
void search_gemms(const Config& config, const Mesh& mesh, Job* job, Device& device, const RankTensors& tensors,
                  ParameterStore& store, Stream& compute, const OverlapSplits* splits, const std::string& file);

}  // namespace tri
