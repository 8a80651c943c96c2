// How the tensor-parallel GEMMs of a layer are split beside their transfers: found by timing, kept in the run folder.
#pragma once

#include <string>

#include "lib/engine/engine.h"

namespace tri {

// What searches found before, and where they write what they find. May be absent; "": none.
struct TuningFiles {
  std::string gemms;   // gemm_tuning.h
  std::string splits;  // a line a shape and kind of GPU
};

// The GEMMs of a step with all splits that are tried get their algorithms first (gemm_tuning.h); then each transfer is
// timed beside its GEMMs with every split, and the slowest rank decides. What `files.splits` holds for this shape and
// kind of GPU is taken as it is: splits that differ between two starts would change bits. Where the device has no
// search, or the config wants none, or no rows are copied: OverlapSplits{}.
// Scribbles over activations, weights and gradients. Collective over the mesh of an engine for training; all ranks have
// the same splits.
OverlapSplits find_overlap_splits(Engine& engine, const TuningFiles& files);

// The timing alone, with whatever algorithms the GEMMs have. Needs a job. Scribbles likewise. Collective; the same on
// all ranks.
OverlapSplits timed_overlap_splits(Engine& engine);

// One line: each GEMM's number of splits, forward then backward, "d" behind those that write into the peers' memory.
std::string to_text(const OverlapSplits& splits);
Result<OverlapSplits> overlap_splits_of(const std::string& text, int tp);

}  // namespace tri
