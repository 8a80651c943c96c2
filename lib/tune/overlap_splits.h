// Chooses how the tensor-parallel GEMMs of a layer are split to overlap their transfers, by timing; the run folder
// stores the choice.
#pragma once

#include <string>

#include "lib/engine/engine.h"

namespace tri {

// First autotunes the GEMMs of a step with all candidate splits (gemm_tuning.h); then times each transfer alongside its
// GEMMs with every split, and the slowest rank's time decides. If tuning.json in the folder `dir` ("": none) has splits
// for this shape and kind of GPU, returns those: splits that differ between two starts would change bits. Returns
// OverlapSplits{} if the device has no autotuning, the config disables it, or no rows are copied. Overwrites
// activations, weights and gradients. Collective over the mesh of a training engine; all ranks get the same splits.
// Throws Fatal if tuning.json cannot be read or used.
OverlapSplits find_overlap_splits(Engine& engine, const std::string& dir);

// Runs only the timing, with the GEMMs' current algorithms. Needs a job. Overwrites the same tensors. Collective; all
// ranks get the same result.
OverlapSplits timed_overlap_splits(Engine& engine);

}  // namespace tri
