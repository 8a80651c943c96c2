// How the tensor-parallel products of a layer are split beside their transfers: found by timing, kept in the run
// folder.
#pragma once

#include <string>

#include "lib/engine/rank_tensors.h"
#include "lib/engine/runtime.h"
#include "lib/model/layers.h"

namespace tri {

class Job;

// The matrix products of a step with all splits that are tried get their algorithms first (gemm_tuning.h, `gemm_file`);
// then each transfer is timed beside its products with every split, and the slowest rank decides. What `file` holds for
// this shape and kind of GPU is taken as it is: splits that differ between two starts would change bits. May be absent;
// "" = none. Where the device has no search, or the config wants none, or no rows are copied: OverlapSplits{}.
// Scribbles over activations, weights and gradients. Collective over the mesh; all ranks have the same splits.
OverlapSplits find_overlap_splits(const Config& config, const Mesh& mesh, Job* job, Device& device,
                                  const RankTensors& tensors, ParameterStore& store, Runtime& runtime,
                                  const std::string& gemm_file, const std::string& file);

// The timing alone, with whatever algorithms the products have. Scribbles likewise. Collective; the same on all ranks.
OverlapSplits timed_overlap_splits(const Config& config, const Mesh& mesh, Job& job, Device& device,
                                   const RankTensors& tensors, ParameterStore& store, Runtime& runtime);

// One line: each product's pieces, forward then backward, "d" behind those that write into the peers' memory.
std::string to_text(const OverlapSplits& splits);
Result<OverlapSplits> overlap_splits_of(const std::string& text, int tp);

}  // namespace tri
