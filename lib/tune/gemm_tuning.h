// Autotunes the algorithms of a rank's GEMMs, and stores them in the run folder.
#pragma once

#include <string>
#include <vector>

#include "lib/engine/engine.h"

namespace tri {

// Finds the GEMMs of a step with a dry run of the stage, and times those without a choice, which ranks with the same
// GEMMs divide among them. All ranks end with the same choices: first those of tuning.json in the folder `dir` ("":
// none), then the lowest world rank's. World rank 0 writes them there. Overwrites activations, weights and gradients,
// so call it before they get their start values. `tp`, `splits`: the transfers alongside which GEMMs run, and how these
// are split if rows are transferred in splits. Collective over the mesh of a training engine; does nothing if the
// device has no autotuning. Throws Fatal if tuning.json cannot be read or used.
void search_gemms(Engine& engine, const AxisTransfers& tp, const OverlapSplits& splits, const std::string& dir);

// Returns which rank times which GEMM, one line per shape: the shape and a rank that lacks it, round robin. `missing`:
// for each rank, the shapes without a choice, one per line.
std::string search_owners(const std::vector<std::string>& missing);

}  // namespace tri
