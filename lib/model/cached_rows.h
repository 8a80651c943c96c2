// Passes over cached sequences, for generating and scoring text: the memory, and the views of it that a pass uses. The
// layers are those of training; only attention reads the cache (AttentionTensors::cache).
//
// A row of such a pass is one token of one of S sequences, at any position. The rows of a pass are any number up to R,
// for instance the next token of every sequence, or many tokens of one prompt.
#pragma once

#include <vector>

#include "lib/model/attention.h"

namespace tri {

struct LayerTensors;
struct LayerWorkspace;
struct StageDims;

// 0 sequences: an engine without a cache.
struct CacheSize {
  int sequences = 0;  // S
  int64_t rows = 0;   // R, a multiple of tp
};

struct CachedRowTensors {
  Tensor sequences, positions;                     // (R) i32; sequence -1: padding, at position 0
  RopeTables angles;                               // (R, HS/2, 2) f32: the rows of the RoPE tables at `positions`
  Tensor position_rows;                            // (Rl, C): the same of learned positions; first stage only
  std::vector<std::vector<KeyValueCache>> layers;  // [chunk][layer]
};

// Returns the slots of a sequence in the cache of a layer: the context or, with a window, what a pass can read.
int64_t cache_slots(const AttentionSpec& attention, int64_t rows);
KeyValueCache allocate_cache(const AttentionSpec& attention, const CacheSize& size, const StageDims& dims,
                             Arena& arena);

// Return views of the first rows of everything that a forward pass with full recompute uses. `rows` is a multiple of
// tp.
LayerTensors first_rows(LayerTensors t, int64_t rows, int tp);
LayerWorkspace first_rows(LayerWorkspace work, const CachedRowTensors& cached, int64_t rows, int tp);

}  // namespace tri
