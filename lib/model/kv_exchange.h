// Context parallelism of attention: the keys and values of whole samples, from the cp ranks that computed them
// (lib/parallel/sequence_chunks.h). Each rank sends its rows to all others; in the backward pass each sends the
// gradients of the others' rows, and each adds up those of its own rows in rank order, so the sums have the same bits
// from run to run.
//
// Threads: call only from the rank's main thread; all work is enqueued on ctx.compute and on the cp stream.
#pragma once

#include "lib/model/layers.h"

namespace tri {

// Whether the keys of a sample are on several ranks.
inline bool divides_samples(const LayerContext& ctx) { return ctx.cp != nullptr; }

// Starts to fill work.attention.kv from `qkv` (R, qkv_width) of all cp ranks. Work enqueued on compute before
// finish_kv_gather() overlaps the transfer; it must not change the keys and values of `qkv`.
void start_kv_gather(const LayerContext& ctx, const AttentionShare& share, Tensor qkv);
// Makes compute wait for all rows of work.attention.kv.
void finish_kv_gather(const LayerContext& ctx);
// Writes the sum of all ranks' work.attention.dkv to the key and value columns of this rank's `dqkv` (R, qkv_width).
// Overwrites work.attention.kv.
void reduce_dkv(const LayerContext& ctx, const AttentionShare& share, Tensor dqkv);

}  // namespace tri
