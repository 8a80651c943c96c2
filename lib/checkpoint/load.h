// Reading pieces of a checkpoint into the ranks of a job. Every stored piece is read from storage once, by one of the
// ranks that need something of it, checked, and sent from there to the others. So it costs no further reading that tp
// ranks hold the same norms, that two stages hold a tied embedding, or that another layout cut the tensors elsewhere.
#pragma once

#include <vector>

#include "io/checkpoint/shard_reader.h"
#include "lib/comm/job.h"

namespace tri {

struct LoadTarget {
  const Piece* piece;
  char* out;  // the array of piece->region
};

// The checkpoint has every target's tensor, of its type and shape.
Result<void> check_fit(const CheckpointReader& reader, const std::vector<LoadTarget>& targets);

// Fills this rank's `targets`. Collective; the same first error on all ranks, with targets partly filled. Beside them a
// rank needs memory for the pieces that it reads for others: about the checkpoint's bytes / ranks, at most.
// Requires check_fit.
Result<void> load_pieces(const CheckpointReader& reader, const std::vector<LoadTarget>& targets, Job& job);

}  // namespace tri
