// The memory of a rank's parameters, gradients and optimizer state: flat buffers, one of each kind per chunk, and the
// tables that the optimizer needs. Set-up only; running it on a measuring arena predicts the memory.
//
// A slice is this rank's part of a bucket: all of it (zero 0), or its part of Bucket::sharded_over().
#pragma once

#include <vector>

#include "kernels/core/arena.h"
#include "lib/comm/peer/copies.h"
#include "lib/optim/flat_layout.h"

namespace tri {

struct ChunkStoreTensors {
  std::vector<ParamSpec> specs;
  FlatLayout layout;
  std::vector<SliceRange> slices;  // [bucket]
  Tensor quantized;                // (layout.quantized) e4m3: the parameters that are stored in FP8
  Tensor parameters;               // (size - layout.quantized) compute dtype: the others
  Tensor gradients;                // (size) f32; zero 2: (slices)
  Tensor master;                   // (slices) f32 master weights; bf16 only
  // (slices) optimizer.moments, each: the state of the optimizer's row (optimizers.h); (slices without Muon's) of those
  // that its matrices do not have.
  std::vector<Tensor> state;
  Tensor ema;                     // (slices) f32: average of the master weights; only with optimizer.ema
  Tensor block_tensor;            // (size / kBlock) i32: index of the owning tensor in the rank's numbering, -1 padding
  std::vector<Tensor> dedicated;  // zero 2, [bucket]: full gradients of buckets that stay open for a whole pass

  // Returns the state of the slice of a bucket.
  std::vector<Tensor> state_of(size_t bucket) const;
};

// Tensors that are sharded over the same axes, and whose slices are divided over the same axes (Bucket::sharded_over),
// have consecutive numbers.
struct TensorRun {
  AxisSet sharded, sliced;
  int first = 0, count = 0;
};

struct StoreTensors {
  std::vector<ChunkStoreTensors> chunks;
  std::vector<Tensor> pool;     // zero 2: buffers for the full gradients of open buckets, used round-robin
  Tensor decay;                 // (S) f32: weight decay of each tensor; below 0: neither decay nor trust ratio
  Tensor count_weight;          // (S) f32: 1 if this rank's slice counts in the global norm, else 0
  Tensor draws;                 // (S, 8) i32: TensorDraws (kernels/moment_rounding.h); moments in bf16 only
  Tensor fp8_slot;              // (S) i32: ParamSpec::fp8_slot of each tensor; only if FP8 weights are stored
  Tensor local_sumsq;           // (S) f32: squares of this rank's own gradients before any reduction, if requested
  PeerCopyTensors peer_copies;  // if parallel.dp_transfers is copies
  int num_tensors = 0;          // S
  std::vector<TensorRun> runs;  // all S tensors; those sharded over slower axes come first

  // Returns the axes over which a tensor is sharded.
  AxisSet sharded(int tensor) const;
};

// `config` must be planned. `specs`: the parameters by chunk; without it, those of the config's model.
StoreTensors allocate_store(const Config& config, const Mesh& mesh, std::vector<std::vector<ParamSpec>> specs,
                            Arena& arena);
StoreTensors allocate_store(const Config& config, const Mesh& mesh, Arena& arena);

}  // namespace tri
