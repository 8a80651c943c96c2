// What of the training state lies where: every shard of master weights and moments that this rank holds, by its
// tensor's name and its place in the global tensor. A checkpoint is these shards, so it does not know the layout that
// wrote it.
//
// Names: "model/<parameter>" for the fp32 weights, "optimizer/<parameter>/<state>" for what the optimizer keeps, such
// as "exp_avg": lib/optim/optimizers.h.
#pragma once

#include <vector>

#include "io/checkpoint/manifest.h"
#include "lib/optim/store_tensors.h"

namespace tri {

struct StateShard {
  TensorShard shard;
  Tensor memory;        // f32|bf16 as the shard's type says, the shard's elements in order
  bool local = false;   // of the dp ranks that hold this shard, it is this one's share: it loads it
  bool writes = false;  // of all ranks that hold this shard, this one saves it
};

// This rank's shards, bucket by bucket: weights, then the optimizer's state. Together, the writing shards of all ranks
// cover every tensor exactly once. `store`: what allocate_store made of the same `config` and `mesh`.
std::vector<StateShard> state_shards(const Config& config, const Mesh& mesh, const StoreTensors& store);

// The host memory of a rank's local shards: they are read into it, and stand still in it while they are written.
struct StateBuffer {
  struct Run {
    const char* from;  // on the device
    int64_t offset, bytes;
  };
  std::vector<int64_t> offset;  // [shard]: bytes; -1: not local
  std::vector<Run> runs;        // a snapshot's copies: shards to write that lie together, padding between them included
  int64_t bytes = 0;
};

StateBuffer state_buffer(const std::vector<StateShard>& shards);

}  // namespace tri
