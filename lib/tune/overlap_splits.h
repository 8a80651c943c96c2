// How the tensor-parallel GEMMs of a layer are split alongside their transfers: found by timing, kept in the run
// folder.
#pragma once

#include <string>

#include "lib/engine/engine.h"

namespace tri {

// The GEMMs of a step with all splits that are tried get their algorithms first (gemm_tuning.h); then each transfer is
// timed alongside its GEMMs with every split, and the slowest rank decides. What tuning.json in the folder `dir` ("":
// none) holds for this shape and kind of GPU is taken as it is: splits that differ between two starts would change
// bits. Where the device has no search, or the config wants none, or no rows are copied: OverlapSplits{}.
// Scribbles over activations, weights and gradients. Collective over the mesh of an engine for training; all ranks have
// the same splits.
OverlapSplits find_overlap_splits(Engine& engine, const std::string& dir);

// The timing alone, with whatever algorithms the GEMMs have. Needs a job. Overwrites the same tensors. Collective; the
// same on all ranks.
OverlapSplits timed_overlap_splits(Engine& engine);

}  // namespace tri
