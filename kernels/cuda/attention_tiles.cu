// Writes the tables of attention_tiles.cuh. Mapping: one block per sample; a thread has a tile, or a position.
// Limits: tiles² / 1024 steps, which is a small part of the attention itself. Bound: latency, a few microseconds.
#include "kernels/cuda/attention_tiles.cuh"

#include "kernels/core/dims.h"
#include "kernels/cuda/check.h"

namespace tri::cuda::flash {
namespace {

constexpr int kThreads = 1024, kNearQueries = 1024;

// Returns how many of `count` items come before item `own` in descending order of weight; equal ones in ascending
// order, or if `descending` in descending order.
__device__ int rank_of(const int* weights, int count, int own, bool descending) {
  const int weight = weights[own];
  int rank = 0;
#pragma unroll 4
  for (int i = 0; i < count; ++i) {
    const int other = weights[i];
    rank += other > weight || (other == weight && (descending ? i > own : i < own)) ? 1 : 0;
  }
  return rank;
}

__global__ void __launch_bounds__(kThreads)
    query_tiles_kernel(QueryTile* to, int* counts, Band band, TileSizes sizes, int tiles) {
  const int b = blockIdx.x;
  to += int64_t{b} * tiles;
  counts += int64_t{b} * tiles;
  const auto bounds = [&](int tile) {
    const int first = tile * sizes.queries, last = min(first + sizes.queries, band.seq_len) - 1;
    const int position = band.position(first), first_key = band.first_key(b, position);
    if (first_key < 0 || first_key > position) __trap();  // the attention kernel would hang
    return QueryTile{tile, first_key / sizes.keys, band.position(last) / sizes.keys};
  };
  for (int tile = threadIdx.x; tile < tiles; tile += kThreads) {
    const QueryTile own = bounds(tile);
    counts[tile] = own.last - own.first;
  }
  __syncthreads();
  for (int tile = threadIdx.x; tile < tiles; tile += kThreads)
    to[rank_of(counts, tiles, tile, /*descending=*/true)] = bounds(tile);
}

// Scratch memory of the next kernel, (key tiles) each per sample.
struct KeyScratch {
  int *ends, *counts, *weights, *ranks;
};

__global__ void __launch_bounds__(kThreads) key_tiles_kernel(KeyTile* to, Turns* turns, KeyScratch scratch, Band band,
                                                             TileSizes sizes, int tiles, int key_tiles) {
  const int b = blockIdx.x, Q = sizes.queries, K = sizes.keys;
  const int64_t at = int64_t{b} * key_tiles;
  to += at;
  turns += int64_t{b} * tiles;
  int *const ends = scratch.ends + at, *const counts = scratch.counts + at, *const weights = scratch.weights + at,
             *const ranks = scratch.ranks + at;
  const auto last_key = [&](int tile) { return min((tile + 1) * K, band.key_len) - 1; };

  // Position p is the end for the keys in [start of its document, start of the next one).
  if (band.document_starts == nullptr) {
    for (int tile = threadIdx.x; tile < key_tiles; tile += kThreads) ends[tile] = band.key_len - 1;
  } else {
#pragma unroll 4
    for (int p = threadIdx.x; p < band.key_len; p += kThreads) {
      const int start = band.document_start(b, p),
                next = p + 1 < band.key_len ? band.document_start(b, p + 1) : band.key_len;
      if (start < 0 || start > p || next < start) __trap();  // the turns would make blocks wait forever
      if (next > start)
        for (int tile = start / K; tile < key_tiles && last_key(tile) < next; ++tile) ends[tile] = p;
    }
  }
  __syncthreads();

  const auto bounds = [&](int tile) {
    const int end = ends[tile], first_row = band.rows_before(tile * K),
              end_row = band.rows_before(band.last_position(last_key(tile), end) + 1);
    KeyTile own{tile, first_row / Q, (end_row + Q - 1) / Q - 1, 0, end};
    own.start = own.last;
    if (band.document_start(b, last_key(tile)) >= tile * K) {
      // A document begins in this tile. Queries of the one before, in rows of this tile:
      for (int q = own.first; q <= own.last; ++q) {
        const int position = band.position(q * Q);
        if (position >= (tile + 1) * K || band.document_start(b, position) >= tile * K) break;
        own.start = q;
      }
    }
    return own;
  };
  for (int tile = threadIdx.x; tile < key_tiles; tile += kThreads) {
    const KeyTile own = bounds(tile);
    counts[tile] = own.steps();
  }
  __syncthreads();
  // Tiles of one document are in ascending order, which their turns need: a tile weighs at least as much as the next.
  // If they should be near each other, so that dq stays in L2 from one to the next, work is rounded up to half of the
  // longest tile's or 1,024 queries, and tiles of equal weight are in ascending order.
  for (int tile = threadIdx.x; tile < key_tiles; tile += kThreads) {
    int most = 0;
    for (int next = tile; next < key_tiles && ends[next] == ends[tile]; ++next) most = max(most, counts[next]);
    if (sizes.near) {
      int longest = 0;
      for (int i = 0; i < key_tiles; ++i) longest = max(longest, counts[i]);
      const int unit = max(kNearQueries / Q, (longest + 1) / 2);
      most = (most + unit - 1) / unit;
    }
    weights[tile] = most;
  }
  __syncthreads();
  for (int tile = threadIdx.x; tile < key_tiles; tile += kThreads) {
    ranks[tile] = rank_of(weights, key_tiles, tile, /*descending=*/false);
    to[ranks[tile]] = bounds(tile);
  }
  __syncthreads();
  for (int tile = threadIdx.x; tile < tiles; tile += kThreads) {
    const int position = band.position(tile * Q), first = band.first_key(b, position) / K, diagonal = position / K;
    int turn = 0;
    for (int key_tile = first; key_tile < diagonal; ++key_tile) turn += ranks[key_tile] < ranks[diagonal] ? 1 : 0;
    turns[tile] = {first, turn};
  }
}

int64_t tiles_of(int tokens, int size) { return ceil_div(tokens, size); }
size_t padded(int64_t bytes) { return static_cast<size_t>(round_up(bytes, 16)); }

template <class Args>
void fill(Bounds& bounds, const Args& a, TileSizes sizes) {
  bounds.band = band_of(a);
  bounds.keys = key_row_of(a);
  if (a.kv.empty()) return;
  for (const int start : {a.chunk_start[0], a.chunk_start[1], a.seq_len / 2})
    TRI_REQUIRE(start % sizes.queries == 0 && start % sizes.keys == 0,
                "attention: chunks of {} / 2 queries at {} and {} are not whole tiles of {} queries and {} keys",
                a.seq_len, a.chunk_start[0], a.chunk_start[1], sizes.queries, sizes.keys);
}

}  // namespace

size_t table_bytes(const AttentionForward& a, TileSizes sizes) {
  if (!has_band(a)) return 0;
  const int64_t tiles = a.lse[0] * tiles_of(a.seq_len, sizes.queries);
  return padded(tiles * static_cast<int64_t>(sizeof(QueryTile) + sizeof(int)));
}

size_t table_bytes(const AttentionBackward& a, TileSizes sizes) {
  if (!has_band(a)) return 0;
  const int64_t tiles = a.lse[0] * tiles_of(a.seq_len, sizes.queries),
                key_tiles = a.lse[0] * tiles_of(key_len_of(a), sizes.keys);
  return padded(tiles * static_cast<int64_t>(sizeof(Turns)) +
                key_tiles * static_cast<int64_t>(sizeof(KeyTile) + 4 * sizeof(int)));
}

ForwardBounds bounds_of(const AttentionForward& a, TileSizes sizes, void* memory, CudaStream& stream) {
  ForwardBounds bounds;
  fill(bounds, a, sizes);
  if (!has_band(a)) return bounds;
  const int64_t batch = a.lse[0], tiles = tiles_of(a.seq_len, sizes.queries);
  auto* queries = static_cast<QueryTile*>(memory);
  query_tiles_kernel<<<static_cast<unsigned>(batch), kThreads, 0, stream>>>(
      queries, reinterpret_cast<int*>(queries + batch * tiles), bounds.band, sizes, static_cast<int>(tiles));
  TRI_CUDA_LAUNCH("attention_query_tiles");
  bounds.query_tiles = queries;
  return bounds;
}

BackwardBounds bounds_of(const AttentionBackward& a, TileSizes sizes, void* memory, CudaStream& stream) {
  BackwardBounds bounds;
  fill(bounds, a, sizes);
  if (!has_band(a)) return bounds;
  const int64_t batch = a.lse[0], tiles = tiles_of(a.seq_len, sizes.queries),
                key_tiles = tiles_of(key_len_of(a), sizes.keys), each = batch * key_tiles;
  auto* keys = static_cast<KeyTile*>(memory);
  auto* turns = reinterpret_cast<Turns*>(keys + each);
  int* scratch = reinterpret_cast<int*>(turns + batch * tiles);
  key_tiles_kernel<<<static_cast<unsigned>(batch), kThreads, 0, stream>>>(
      keys, turns, {scratch, scratch + each, scratch + 2 * each, scratch + 3 * each}, bounds.band, sizes,
      static_cast<int>(tiles), static_cast<int>(key_tiles));
  TRI_CUDA_LAUNCH("attention_key_tiles");
  bounds.key_tiles = keys;
  bounds.turns = turns;
  return bounds;
}

}  // namespace tri::cuda::flash
