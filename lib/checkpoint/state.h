// The layout of the training state in memory: every shard of master weights and moments that this rank holds, by its
// tensor's name and its place in the global tensor. A checkpoint consists of these shards and does not depend on the
// layout that wrote it.
//
// Names: "model/<parameter>" for the fp32 weights, "ema/<parameter>" for their average (optimizer.ema),
// "optimizer/<parameter>/<state>" for the optimizer's state, such as "exp_avg": lib/optim/optimizers.h.
#pragma once

#include <vector>

#include "io/checkpoint/manifest.h"
#include "lib/optim/store_tensors.h"

namespace tri {

struct StateShard {
  TensorShard shard;
  Tensor memory;        // f32|bf16 as in shard.type, the shard's elements in order
  bool local = false;   // this rank loads it, among the dp ranks that hold it
  bool writes = false;  // this rank saves it, among all ranks that hold it
};

// Returns this rank's shards, bucket by bucket: weights, the optimizer's state, the average of the weights. The shards
// with `writes` of all ranks cover every tensor exactly once. `store`: from allocate_store with the same `config` and
// `mesh`.
std::vector<StateShard> state_shards(const Config& config, const Mesh& mesh, const StoreTensors& store);

// Host memory for a rank's local shards: loading reads into it, and saving writes from it.
struct StateBuffer {
  struct Run {
    const char* from;  // on the device
    int64_t offset, bytes;
  };
  std::vector<int64_t> offset;  // [shard]: bytes; -1: not local
  std::vector<Run> runs;        // the copies of a snapshot: contiguous shards to write, with the padding between them
  int64_t bytes = 0;
};

StateBuffer state_buffer(const std::vector<StateShard>& shards);

}  // namespace tri
