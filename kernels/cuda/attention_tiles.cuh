// The tiles that the tensor-core attention kernels process where documents or chunks of samples decide it
// (attention_band.cuh). A small kernel writes these tables before each call, so that a block reads its bounds instead
// of searching for them, and so that the tiles with most work start first.
#pragma once

#include "kernels/cuda/attention_band.cuh"
#include "kernels/cuda/stream.h"

namespace tri::cuda::flash {

// A tile of queries, for the forward pass: (B, tiles), those that overlap most tiles of keys first.
struct QueryTile {
  int tile;
  int first, last;  // tiles of keys that its band overlaps
};
// A tile of keys, for the backward pass: (B, key tiles) in the order of their work. A block walks its query tiles from
// `start` down to `first`, then from `last` down: a tile in which a document begins starts with the queries that are
// still of the document before, as that document's key tiles do, so that no block waits long for its turn to add dq.
struct KeyTile {
  int tile;
  int first, last;  // tiles of queries that attend to it; last < first if none does
  int start;
  int end;  // the last position of the document of the tile's last key

  __device__ int steps() const { return max(last - first + 1, 0); }
  // Returns the query tile of a step, which count down from steps() to 1.
  __device__ int query_tile(int step) const {
    const int tile = start - (steps() - step);
    return tile < first ? tile + steps() : tile;
  }
};
// The order in which key tiles add to dq of a query tile, (B, tiles). It is that of KeyTile's order, so that a block
// waits only for blocks that started before it: ascending, except that the tile on the diagonal can be anywhere.
struct Turns {
  int first;     // tile of keys
  int diagonal;  // the turn of the tile on the diagonal
  __device__ int of(int key_tile, int diagonal_tile) const {
    const int turn = key_tile - first;
    return key_tile == diagonal_tile ? diagonal : turn + (turn >= diagonal ? 1 : 0);
  }
};

// What the kernels of a pass with kTables set need in addition: the band, where the heads of a row of keys and values
// lie, and the tables. The other kernels do not read it.
struct Bounds {
  Band band{};
  QkvRow keys{};
  __device__ int64_t key_at(int b, int s, int head) const {
    return (int64_t{b} * band.key_len + s) * keys.width + head;
  }
};
struct ForwardBounds : Bounds {
  const QueryTile* query_tiles = nullptr;
};
struct BackwardBounds : Bounds {
  const KeyTile* key_tiles = nullptr;
  const Turns* turns = nullptr;
};

// The tokens of a kernel's tiles; chunks begin at multiples of both.
struct TileSizes {
  int queries, keys;
  // The order of key tiles. false: most work first; true: those of a document follow each other, so that dq stays in L2
  // from one to the next, as far as that leaves the load balanced.
  bool near = false;
};

// Return the bytes of a call's tables, a multiple of 16; 0 if it needs none.
size_t table_bytes(const AttentionForward& args, TileSizes sizes);
size_t table_bytes(const AttentionBackward& args, TileSizes sizes);
// Enqueue the kernels that write the tables to `memory`, 16-byte aligned, if the call needs them.
ForwardBounds bounds_of(const AttentionForward& args, TileSizes sizes, void* memory, CudaStream& stream);
BackwardBounds bounds_of(const AttentionBackward& args, TileSizes sizes, void* memory, CudaStream& stream);

}  // namespace tri::cuda::flash
