// What of the training state lies where: every piece of master weights and moments that this rank holds, by its
// tensor's name and its place in the global tensor. A checkpoint is these pieces, so it does not know the layout that
// wrote it.
//
// Names: "model/<parameter>" for the fp32 weights, "optimizer/<parameter>/exp_avg" and ".../exp_avg_sq" for the
// moments.
#pragma once

#include <string>
#include <vector>

#include "lib/optim/parameter_store.h"

namespace tri {

// A rectangular block of a tensor: [start, start + extent) in every dim.
struct TensorBlock {
  std::vector<int64_t> start, extent;
  int64_t numel() const;
  bool operator==(const TensorBlock&) const = default;
};

// The row-major elements [begin, end) of a tensor of `shape` as blocks, in order; each is contiguous there. At most
// 2 · dims - 1 of them.
std::vector<TensorBlock> blocks_of_range(const std::vector<int64_t>& shape, int64_t begin, int64_t end);

struct StatePiece {
  std::string tensor;
  std::vector<int64_t> shape;  // global
  TensorBlock block;           // of the global tensor
  Tensor memory;               // (block.numel()) f32, the block's elements in order
  bool writes = false;         // of all ranks that hold this block, this one saves it
};

// This rank's pieces, bucket by bucket: weights, first and second moments. Together, the writing pieces of all ranks
// cover every tensor exactly once. `store`: what allocate_store made of the same `config` and `mesh`.
std::vector<StatePiece> state_pieces(const Config& config, const Mesh& mesh, const StoreTensors& store);

}  // namespace tri
