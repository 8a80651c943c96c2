// What of the training state lies where: every piece of master weights and moments that this rank holds, by its
// tensor's name and its place in the global tensor. A checkpoint is these pieces, so it does not know the layout that
// wrote it.
//
// Names: "model/<parameter>" for the fp32 weights, "optimizer/<parameter>/<state>" for what the optimizer keeps, such
// as "exp_avg": lib/optim/optimizers.h.
#pragma once

#include <vector>

#include "io/checkpoint/manifest.h"
#include "lib/optim/store_tensors.h"

namespace tri {

struct StatePiece {
  Piece piece;
  Tensor memory;        // f32|bf16 as the piece's type says, the piece's elements in order
  bool local = false;   // of the dp ranks that hold this piece, it is this one's share: it loads it
  bool writes = false;  // of all ranks that hold this piece, this one saves it
};

// This rank's pieces, bucket by bucket: weights, then the optimizer's state. Together, the writing pieces of all ranks
// cover every tensor exactly once. `store`: what allocate_store made of the same `config` and `mesh`.
std::vector<StatePiece> state_pieces(const Config& config, const Mesh& mesh, const StoreTensors& store);

// The host memory of a rank's local pieces: they are read into it, and stand still in it while they are written.
struct StateBuffer {
  struct Run {
    const char* from;  // on the device
    int64_t offset, bytes;
  };
  std::vector<int64_t> offset;  // [piece]: bytes; -1: not local
  std::vector<Run> runs;        // a snapshot's copies: pieces to write that lie together, padding between them included
  int64_t bytes = 0;
};

StateBuffer state_buffer(const std::vector<StatePiece>& pieces);

}  // namespace tri
