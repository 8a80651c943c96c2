// The timed search for the algorithms of a rank's GEMMs, and its memory in the run folder.
#pragma once

#include <string>
#include <vector>

#include "lib/engine/engine.h"

namespace tri {

// Finds the GEMMs of a step by walking through the stage without doing anything, and times those without a choice,
// which ranks that have the same divide among them. All ranks end with the same choices: first those of
// tuning.json in the folder `dir` ("": none), then the lowest world rank's. World rank 0 writes them there.
// Scribbles over activations, weights and gradients: to be called before they get their start values. `tp`, `splits`:
// the transfers alongside which GEMMs run, and how these are split where rows travel in splits. Collective over the
// mesh of an engine for training; does nothing where the device has no search.
void search_gemms(Engine& engine, const AxisTransfers& tp, const OverlapSplits& splits, const std::string& dir);

// Who times which GEMM. `missing`: of each rank the shapes that it has no choice for, a line each. A line for each
// shape: the shape and a rank that lacks it; ranks take turns.
std::string search_owners(const std::vector<std::string>& missing);

}  // namespace tri
