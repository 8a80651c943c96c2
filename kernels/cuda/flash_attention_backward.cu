// The backward pass of the project's attention: kernels/cuda/flash_attention.cuh. A block of eight warps owns 128 keys
// (tiles of 256 columns: 64) of a key/value head, whose dk and dv stay in registers. It processes the band's query
// tiles from the last down and, for each, the group's heads. dq is summed over key tiles in an fp32 workspace, in their
// order: each head's query tile has a counter that names the block that adds next. Concurrent blocks process the query
// tiles one handover apart, so a block rarely waits. A ticket counter assigns key tiles in ascending order, so a block
// waits only for blocks that run or have finished. Two small kernels compute delta before and round dq after. Where
// documents or chunks decide the tiles, tables give their bounds and order (attention_tiles.cuh).
// Limits: 163 KiB of shared memory (tiles of 256 columns: 210 KiB) and a workspace of 4 bytes per element of q;
// parallelism is B · NKV · T / 128 (64) blocks.
#include "kernels/cuda/flash_attention.cuh"
#include "kernels/cuda/workspace.h"

namespace tri::cuda {
namespace flash {
namespace {

template <int kHead>
struct BackwardTiles {
  static constexpr int kThreads = 256;
  static constexpr int kWarps = kThreads / 32;
  static constexpr int kKeys = kHead == 256 ? 64 : 128;
  static constexpr int kQueries = kHead == 64 ? 128 : 64;
  // Scores and their gradients: each warp has 32 queries and kScoreKeys keys.
  static constexpr int kScoreRowWarps = kQueries / 32;
  static constexpr int kScoreKeys = kKeys / (kWarps / kScoreRowWarps);
  // dk, dv: each warp has 32 keys and kColumnPairs groups of 16 columns, kColumnWarps · 16 apart.
  static constexpr int kKeyWarps = kKeys / 32, kColumnWarps = kWarps / kKeyWarps;
  static constexpr int kColumnPairs = kHead / 16 / kColumnWarps;
  // dq: each warp has kSumRows queries and kSumPairs groups of 16 columns, kSumColumnWarps · 16 apart.
  static constexpr int kSumRowWarps = kHead >= 128 ? 2 : 4;
  static constexpr int kSumColumnWarps = kWarps / kSumRowWarps;
  static constexpr int kSumRows = kQueries / kSumRowWarps;
  static constexpr int kSumPairs = kHead / 16 / kSumColumnWarps;
  static constexpr int kSumItems = kSumRows / 16 * kSumPairs * 2;  // float4 of a lane

  static constexpr uint32_t kKeyBytes = kKeys * kHead * 2, kQueryBytes = kQueries * kHead * 2,
                            kScoreBytes = kQueries * kKeys * 2, kStatBytes = kQueries * 4;
  static constexpr int kShared =
      2 * kKeyBytes + 4 * kQueryBytes + 2 * kScoreBytes + 4 * kStatBytes + 16;  // includes the ticket
};

// The workspace of dq: (B, NH, query tiles) tiles of (kWarps, kSumItems, 32 lanes) float4, where a float4 is a warp's
// accumulator c0..c3 of one 16 x 8 block, and for each tile the number of key tiles that have been added.
struct QueryGradient {
  float4* sums;
  int* turns;
  int* ticket;
  int tiles;           // of queries, per head
  int key_tiles;       // per key/value head
  int pairs;           // (sequence, key/value head): B · NKV
  int pairs_together;  // processed concurrently
};

__device__ __forceinline__ void add_global(float4* to, const float (&value)[4]) {
#if __CUDA_ARCH__ >= 900
  asm volatile("red.relaxed.gpu.global.add.v4.f32 [%0], {%1, %2, %3, %4};" ::"l"(to), "f"(value[0]), "f"(value[1]),
               "f"(value[2]), "f"(value[3])
               : "memory");
#else
  float* at = reinterpret_cast<float*>(to);
#pragma unroll
  for (int e = 0; e < 4; ++e) atomicAdd(at + e, value[e]);
#endif
}

// delta[b, h, t] = sum_c dout · out. Mapping: one group of lanes per row of a head, sixteen bytes per lane.
template <int kHead>
__global__ void __launch_bounds__(256) delta_kernel(float* delta, const Bf16* dout, const Bf16* out, Shape d) {
  constexpr int kLanes = row_lanes(kHead), kRows = 256 / kLanes;
  const int lane = threadIdx.x % kLanes, head = blockIdx.y, b = blockIdx.z;
#pragma unroll
  for (int n = 0; n < 4; ++n) {
    const int t = (static_cast<int>(blockIdx.x) * 4 + n) * kRows + static_cast<int>(threadIdx.x) / kLanes;
    const float sum = row_delta<kHead>(dout, out, d.out_at(b, t, head, d.row.head_size), lane,
                                       t < d.seq_len && lane * 8 < d.row.head_size);
    if (t < d.seq_len && lane == 0) delta[d.stat_at(b, t, head)] = sum;
  }
}

template <int kHead, bool kCapped, bool kTables>
__global__ void __launch_bounds__(BackwardTiles<kHead>::kThreads, 1)
    backward_kernel(Bf16* dqkv, QueryGradient dq, const Bf16* dout, const float* lse, const float* delta,
                    const Bf16* qkv, Shape d, const Bf16* kv_rows, Bf16* dkv_rows, BackwardBounds bounds) {
  using Tiles = BackwardTiles<kHead>;
  using Tile = SharedTile<kHead>;
  using Scores = SharedTile<Tiles::kKeys>;  // (queries, keys)
  constexpr int kQueries = Tiles::kQueries, kKeys = Tiles::kKeys, kThreads = Tiles::kThreads;
  constexpr int kScoreTiles = Tiles::kScoreKeys / 8, kSumRowTiles = Tiles::kSumRows / 16;
  extern __shared__ __align__(1024) unsigned char shared[];
  const uint32_t keys = shared_address(shared), values = keys + Tiles::kKeyBytes, queries = values + Tiles::kKeyBytes,
                 douts = queries + 2 * Tiles::kQueryBytes, weights = douts + 2 * Tiles::kQueryBytes,
                 dscores = weights + Tiles::kScoreBytes, stats = dscores + Tiles::kScoreBytes;
  int* const ticket = reinterpret_cast<int*>(shared + Tiles::kShared - 16);

  // The order of the work: sections of a few (sequence, key/value head) pairs; within a section key tiles ascend, which
  // starts with those that have most queries, or are in the order of the tables.
  const int thread = static_cast<int>(threadIdx.x), lane = thread % 32, warp = thread / 32;
  if (thread == 0) *ticket = atomicAdd(dq.ticket, 1);
  __syncthreads();
  const int64_t work = *ticket, whole = int64_t{dq.pairs_together} * dq.key_tiles;
  const int first_pair = static_cast<int>(work / whole) * dq.pairs_together, rest = static_cast<int>(work % whole);
  const int together = min(dq.pairs_together, dq.pairs - first_pair), pair = first_pair + rest % together;
  const int b = pair / d.kv_heads, kv = pair % d.kv_heads;
  KeyTile own{};
  if constexpr (kTables) own = bounds.key_tiles[int64_t{b} * dq.key_tiles + rest / together];
  const int key_tile = kTables ? own.tile : rest / together, key_len = kTables ? bounds.band.key_len : d.seq_len;
  const int first_key = key_tile * kKeys, valid_keys = min(kKeys, key_len - first_key);
  // With tables, these count the steps of KeyTile.
  const int first_tile = kTables ? 1 : first_key / kQueries;
  const int last_tile = kTables ? own.steps() : d.last_query(first_key + valid_keys - 1) / kQueries;
  const auto query_tile = [&](int step) { return kTables ? own.query_tile(step) : step; };
  const QkvRow& key_row = kTables ? bounds.keys : d.row;
  const int head_size = d.row.head_size, stride = d.row.width, out_stride = d.out_row(head_size);

  const Bf16* query_rows = qkv + d.qkv_at(b, 0, d.row.query(kv, 0));
  const auto copy_queries = [&](int step, int g, int stage) {
    const int first = query_tile(step) * kQueries, head = kv * d.group + g;
    copy_tile<kQueries, kHead, kThreads>(queries + stage * Tiles::kQueryBytes, query_rows + g * head_size, stride,
                                         first, d.seq_len, head_size);
    copy_tile<kQueries, kHead, kThreads>(douts + stage * Tiles::kQueryBytes, dout + d.out_at(b, 0, head, head_size),
                                         out_stride, first, d.seq_len, head_size);
    if (thread < 2 * kQueries) {
      // Zeros beyond the end give weights of 1 there, whose products with rows of zeros vanish.
      const int t = first + static_cast<int>(threadIdx.x % kQueries);
      copy_async4(stats + (2 * stage * kQueries + thread) * 4,
                  (thread < kQueries ? lse : delta) + d.stat_at(b, t, head), t < d.seq_len);
    }
    copy_async_commit();
  };
  copy_tile<kKeys, kHead, kThreads, 2>(
      keys, kTables ? kv_rows + bounds.key_at(b, 0, key_row.key(kv)) : qkv + d.qkv_at(b, 0, d.row.key(kv)),
      key_row.width, first_key, key_len, head_size, Tiles::kKeyBytes, key_row.value_at - key_row.key_at);
  if (kTables && own.steps() == 0)
    copy_async_commit();
  else
    copy_queries(last_tile, 0, 0);
  // With tables: the last position that attends to the tile's first key.
  int first_last = 0;
  if constexpr (kTables) {
    const int tile_last = first_key + kKeys - 1;
    const bool to_end = bounds.band.document_start(b, tile_last) <= first_key;
    first_last =
        bounds.band.last_position(first_key, to_end ? own.end : bounds.band.document_end(b, first_key, tile_last));
  }

  // Scores: this warp's first query and key, and its lanes' addresses of both operands and of the results.
  const int score_row = warp % Tiles::kScoreRowWarps * 32, score_key = warp / Tiles::kScoreRowWarps * Tiles::kScoreKeys;
  const uint32_t row_at = Tile::at(score_row + rows_first_row(lane), rows_first_chunk(lane));
  const uint32_t key_at = Tile::at(score_key + columns_first_row(lane), columns_first_chunk(lane));
  const uint32_t store_at = Scores::at(score_row + lane / 4, score_key / 8) + lane % 4 * 4;
  // dk, dv: the weights' columns, stored as rows of queries, and the queries' columns.
  const int grad_key = warp % Tiles::kKeyWarps * 32, grad_column = warp / Tiles::kKeyWarps;
  const uint32_t weight_at = Scores::at(columns_first_row(lane), grad_key / 8 + columns_first_chunk(lane));
  const uint32_t column_at = Tile::at(rows_first_row(lane), 2 * grad_column + rows_first_chunk(lane));
  // dq
  const int sum_row = warp / Tiles::kSumColumnWarps * Tiles::kSumRows, sum_column = warp % Tiles::kSumColumnWarps;
  const uint32_t dscore_at = Scores::at(sum_row + rows_first_row(lane), rows_first_chunk(lane));
  const uint32_t key_column_at = Tile::at(rows_first_row(lane), 2 * sum_column + rows_first_chunk(lane));

  const float scale = score_scale<kCapped>(d) * kLog2E;
  float dk[2][2 * Tiles::kColumnPairs][4], dv[2][2 * Tiles::kColumnPairs][4];
  clear(dk);
  clear(dv);
  int* turn = nullptr;  // of the previous tile
  int own_turn = 0, stage = 0;
#pragma unroll 1
  for (int tile = last_tile, g = 0; tile >= first_tile; stage ^= 1) {
    copy_async_wait<0>();
    __syncthreads();  // this tile has arrived, and no thread still uses the previous tile or its scores
    // One thread releases the previous tile for all: the release waits for their adds but delays only one warp.
    if (thread == 0 && turn != nullptr) store_release(turn, own_turn + 1);
    const int next_g = g + 1 < d.group ? g + 1 : 0, next_tile = next_g > 0 ? tile : tile - 1;
    if (next_tile >= first_tile) copy_queries(next_tile, next_g, stage ^ 1);
    const uint32_t q = queries + stage * Tiles::kQueryBytes, dy = douts + stage * Tiles::kQueryBytes;
    const uint32_t stat_at = stats + (2 * stage * kQueries + score_row + lane / 4) * 4;
    const int first_query = query_tile(tile) * kQueries;

    float p[2][kScoreTiles][4];
    clear(p);
    multiply<kHead / 16, 2, kScoreTiles / 2>(
        p,
        [&](uint32_t(&to)[4], int k, int m) { load_matrix(to, Tile::step(q + row_at, 2 * k) + m * 16 * Tile::kRow); },
        [&](uint32_t(&to)[4], int k, int n) {
          load_matrix(to, Tile::step(keys + key_at, 2 * k) + n * 16 * Tile::kRow);
        });
#pragma unroll
    for (int m = 0; m < 2; ++m) {
      float offset[2];
#pragma unroll
      for (int half = 0; half < 2; ++half) offset[half] = load_shared_float(stat_at + (m * 16 + half * 8) * 4) * kLog2E;
#pragma unroll
      for (int n = 0; n < kScoreTiles; ++n) {
        if constexpr (kCapped) cap_scores(p[m][n], d);
#pragma unroll
        for (int e = 0; e < 4; ++e) p[m][n][e] = exp2_fast(fmaf(p[m][n][e], scale, -offset[e / 2]));
      }
    }
    float dp[2][kScoreTiles][4];
    clear(dp);
    multiply<kHead / 16, 2, kScoreTiles / 2>(
        dp,
        [&](uint32_t(&to)[4], int k, int m) { load_matrix(to, Tile::step(dy + row_at, 2 * k) + m * 16 * Tile::kRow); },
        [&](uint32_t(&to)[4], int k, int n) {
          load_matrix(to, Tile::step(values + key_at, 2 * k) + n * 16 * Tile::kRow);
        });
    // Masks after the second GEMM, so that the exponentials can run concurrently with it.
    if constexpr (kTables) {
      const int position = bounds.band.position(first_query);
      if (first_key + kKeys - 1 > position || position + kQueries - 1 > first_last)
        mask(p, position + score_row, first_key + score_key, lane, 0.0f, bounds.band, b);
    } else {
      const bool edge = first_key + kKeys - 1 > first_query || first_key <= d.below(first_query + kQueries - 1);
      if (edge) mask(p, first_query + score_row, first_key + score_key, lane, 0.0f, d);
    }
#pragma unroll
    for (int m = 0; m < 2; ++m)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const float own = load_shared_float(stat_at + (kQueries + m * 16 + half * 8) * 4);
#pragma unroll
        for (int n = 0; n < kScoreTiles; ++n) {
          const float p0 = p[m][n][2 * half], p1 = p[m][n][2 * half + 1];
          float ds0 = p0 * (dp[m][n][2 * half] - own), ds1 = p1 * (dp[m][n][2 * half + 1] - own);
          if constexpr (kCapped) {
            const float lse = load_shared_float(stat_at + (m * 16 + half * 8) * 4) * kLog2E;
            ds0 *= cap_slope(p0, lse, d);
            ds1 *= cap_slope(p1, lse, d);
          }
          const uint32_t to = Scores::step(weights + store_at, n) + (m * 16 + half * 8) * Scores::kRow;
          store_shared(to, pack_bf16(p0, p1));
          store_shared(to + Tiles::kScoreBytes, pack_bf16(ds0, ds1));  // dscores
        }
      }
    __syncthreads();  // weights and their gradients are stored

    const int64_t item = (int64_t{b} * d.heads() + kv * d.group + g) * dq.tiles + query_tile(tile);
    turn = dq.turns + item;
    if constexpr (kTables)
      own_turn = bounds.turns[int64_t{b} * dq.tiles + query_tile(tile)].of(key_tile,
                                                                           bounds.band.position(first_query) / kKeys);
    else
      own_turn = key_tile - d.first_key(first_query) / kKeys;
    int seen = load_relaxed(turn);  // loaded early, so that it arrives during the GEMM
    multiply<kQueries / 16, 2, Tiles::kColumnPairs>(
        dv,
        [&](uint32_t(&to)[4], int k, int m) {
          load_matrix_transposed(to, Scores::step(weights + weight_at, 2 * m) + k * 16 * Scores::kRow);
        },
        [&](uint32_t(&to)[4], int k, int n) {
          load_matrix_transposed(to, Tile::step(dy + column_at, 2 * Tiles::kColumnWarps * n) + k * 16 * Tile::kRow);
        });
    {
      float sum[kSumRowTiles][2 * Tiles::kSumPairs][4];
      clear(sum);
      multiply<kKeys / 16, kSumRowTiles, Tiles::kSumPairs>(
          sum,
          [&](uint32_t(&to)[4], int k, int m) {
            load_matrix(to, Scores::step(dscores + dscore_at, 2 * k) + m * 16 * Scores::kRow);
          },
          [&](uint32_t(&to)[4], int k, int n) {
            load_matrix_transposed(
                to, Tile::step(keys + key_column_at, 2 * Tiles::kSumColumnWarps * n) + k * 16 * Tile::kRow);
          });
      // The adds depend on this branch and run in L2, so they cannot overtake the load that saw the turn.
      while (seen != own_turn) seen = load_acquire(turn);
      __syncwarp();
      float4* const to = dq.sums + (item * Tiles::kWarps + warp) * Tiles::kSumItems * 32 + lane;
      if (own_turn == 0) {
#pragma unroll
        for (int m = 0; m < kSumRowTiles; ++m)
#pragma unroll
          for (int n = 0; n < 2 * Tiles::kSumPairs; ++n)
            __stcg(to + (m * 2 * Tiles::kSumPairs + n) * 32,
                   make_float4(sum[m][n][0], sum[m][n][1], sum[m][n][2], sum[m][n][3]));
      } else {
#pragma unroll
        for (int m = 0; m < kSumRowTiles; ++m)
#pragma unroll
          for (int n = 0; n < 2 * Tiles::kSumPairs; ++n)
            add_global(to + (m * 2 * Tiles::kSumPairs + n) * 32, sum[m][n]);
      }
    }
    multiply<kQueries / 16, 2, Tiles::kColumnPairs>(
        dk,
        [&](uint32_t(&to)[4], int k, int m) {
          load_matrix_transposed(to, Scores::step(dscores + weight_at, 2 * m) + k * 16 * Scores::kRow);
        },
        [&](uint32_t(&to)[4], int k, int n) {
          load_matrix_transposed(to, Tile::step(q + column_at, 2 * Tiles::kColumnWarps * n) + k * 16 * Tile::kRow);
        });
    tile = next_tile;
    g = next_g;
  }

  if constexpr (kTables) copy_async_wait<0>();  // if there were no queries
  __syncthreads();  // the tiles of keys and values are now free: they stage dk and dv for stores of 16 bytes
  if (thread == 0 && (!kTables || turn != nullptr)) store_release(turn, own_turn + 1);
#pragma unroll
  for (int m = 0; m < 2; ++m)
#pragma unroll
    for (int n = 0; n < 2 * Tiles::kColumnPairs; ++n)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int chunk = (n / 2 * Tiles::kColumnWarps + grad_column) * 2 + n % 2;
        const uint32_t to = Tile::at(grad_key + m * 16 + half * 8 + lane / 4, chunk) + lane % 4 * 4;
        store_shared(keys + to, pack_bf16(dk[m][n][2 * half] * d.scale, dk[m][n][2 * half + 1] * d.scale));
        store_shared(values + to, pack_bf16(dv[m][n][2 * half], dv[m][n][2 * half + 1]));
      }
  __syncthreads();
#pragma unroll 4
  for (int n = thread; n < kKeys * Tile::kChunks; n += kThreads) {
    const int row = n / Tile::kChunks, chunk = n % Tile::kChunks;
    if (row >= valid_keys) break;
    if (chunk * 8 >= head_size) continue;
    Bf16* to = (kTables ? dkv_rows + bounds.key_at(b, first_key + row, key_row.key(kv))
                        : dqkv + d.qkv_at(b, first_key + row, d.row.key(kv))) +
               chunk * 8;
    *reinterpret_cast<uint4*>(to) = load_shared16(keys + Tile::at(row, chunk));
    *reinterpret_cast<uint4*>(to + key_row.value_at - key_row.key_at) = load_shared16(values + Tile::at(row, chunk));
  }
}

// dqkv's queries = scale · the workspace's sums. Mapping: one block per query tile of a head; each thread has eight
// columns of two rows at a time.
template <int kHead>
__global__ void __launch_bounds__(256) round_query_gradient_kernel(Bf16* dqkv, const float4* sums, Shape d) {
  using Tiles = BackwardTiles<kHead>;
  constexpr int kChunks = kHead / 8;
  const int tile = blockIdx.x, head = blockIdx.y, b = blockIdx.z;
  const int64_t item = (int64_t{b} * d.heads() + head) * gridDim.x + tile;
#pragma unroll 2
  for (int n = threadIdx.x; n < Tiles::kQueries / 2 * kChunks; n += 256) {
    const int chunk = n % kChunks, g = n / kChunks % 8, block = n / kChunks / 8;  // `block`: of 16 rows
    if (chunk * 8 >= d.row.head_size) continue;
    constexpr int kBlocks = Tiles::kSumRows / 16;  // per warp
    const int warp = block / kBlocks * Tiles::kSumColumnWarps + chunk / 2 % Tiles::kSumColumnWarps;
    const int pair = chunk / 2 / Tiles::kSumColumnWarps;
    const int at = (block % kBlocks * Tiles::kSumPairs + pair) * 2 + chunk % 2;
    const float4* from = sums + ((item * Tiles::kWarps + warp) * Tiles::kSumItems + at) * 32 + g * 4;
    uint32_t low[4], high[4];
#pragma unroll
    for (int t = 0; t < 4; ++t) {
      const float4 value = __ldcs(from + t);
      low[t] = pack_bf16(value.x * d.scale, value.y * d.scale);
      high[t] = pack_bf16(value.z * d.scale, value.w * d.scale);
    }
    const int row = tile * Tiles::kQueries + block * 16 + g;
    Bf16* to = dqkv + d.qkv_at(b, row, d.row.query(head / d.group, head % d.group)) + chunk * 8;
    if (row < d.seq_len) *reinterpret_cast<uint4*>(to) = make_uint4(low[0], low[1], low[2], low[3]);
    if (row + 8 < d.seq_len)
      *reinterpret_cast<uint4*>(to + int64_t{8} * d.row.width) = make_uint4(high[0], high[1], high[2], high[3]);
  }
}

// More concurrent pairs balance the load better; with fewer, more blocks share what they read from memory. With 32, the
// reads of dout, q and dq stay below a fifth of an H100's bandwidth.
constexpr int kPairsTogether = 32;

}  // namespace
}  // namespace flash

using namespace flash;

void mma_attention_backward(const AttentionBackward& a, CudaStream& stream) {
  TRI_REQUIRE(a.qkv.dtype == Dtype::kBF16, "no flash attention kernel for {}", enum_name(a.qkv.dtype));
  const Shape d = shape_of(a);
  const FirstHead first = first_head_of(a);
  const int64_t batch = a.qkv[0] / d.seq_len, heads = int64_t{d.kv_heads} * d.group;
  Bf16* const dqkv = pointer<Bf16>(a.dqkv) + first.query;
  float* const delta = pointer<float>(a.delta) + first.stat;
  const Bf16* const dout = pointer<Bf16>(a.dout) + first.out;
  with_head_size(d.row.head_size, [&](auto head_size) {
    constexpr int kHead = head_size();
    using Tiles = BackwardTiles<kHead>;
    const int64_t tiles = ceil_div(d.seq_len, Tiles::kQueries), key_tiles = ceil_div(key_len_of(a), Tiles::kKeys);
    const int64_t pairs = batch * d.kv_heads, items = batch * heads * tiles;
    const size_t sum_bytes = static_cast<size_t>(items) * Tiles::kQueries * kHead * sizeof(float);
    const size_t turn_bytes = (static_cast<size_t>(items) + 1) * sizeof(int);  // includes the ticket
    constexpr TileSizes kSizes{Tiles::kQueries, Tiles::kKeys};
    const size_t tables_at = round_up(static_cast<int64_t>(sum_bytes + turn_bytes), 16);
    char* memory = static_cast<char*>(workspace(stream, Scratch::kAttention, tables_at + table_bytes(a, kSizes)));
    int* turns = reinterpret_cast<int*>(memory + sum_bytes);
    TRI_CUDA(cudaMemsetAsync(turns, 0, turn_bytes, stream));
    const int64_t together = ceil_div(pairs, ceil_div(pairs, kPairsTogether));  // nearly equal sections
    const QueryGradient dq{reinterpret_cast<float4*>(memory),
                           turns,
                           turns + items,
                           static_cast<int>(tiles),
                           static_cast<int>(key_tiles),
                           static_cast<int>(pairs),
                           static_cast<int>(together)};
    const BackwardBounds bounds = bounds_of(a, kSizes, memory + tables_at, stream);

    constexpr int kDeltaRows = 4 * 256 / row_lanes(kHead);
    const dim3 rows(static_cast<unsigned>(ceil_div(d.seq_len, kDeltaRows)), static_cast<unsigned>(heads),
                    static_cast<unsigned>(batch));
    delta_kernel<kHead><<<rows, 256, 0, stream>>>(delta, dout, pointer<Bf16>(a.out) + first.out, d);
    TRI_CUDA_LAUNCH("flash_attention_delta");
    static_assert(Tiles::kShared <= flash_shared_bytes(kHead));
    with_flags(a.softcap > 0, has_band(a), [&](auto capped, auto tables) {
      const auto kernel = backward_kernel<kHead, decltype(capped)::value, decltype(tables)::value>;
      allow_shared(kernel, Tiles::kShared);
      kernel<<<static_cast<unsigned>(pairs * key_tiles), Tiles::kThreads, Tiles::kShared, stream>>>(
          dqkv, dq, dout, pointer<float>(a.lse) + first.stat, delta, pointer<Bf16>(a.qkv) + first.query, d,
          pointer<Bf16>(keys_of(a)), pointer<Bf16>(key_gradients_of(a)), bounds);
    });
    TRI_CUDA_LAUNCH("flash_attention_backward");
    const dim3 query_tiles(static_cast<unsigned>(tiles), static_cast<unsigned>(heads), static_cast<unsigned>(batch));
    round_query_gradient_kernel<kHead>
        <<<query_tiles, 256, 0, stream>>>(dqkv, reinterpret_cast<const float4*>(memory), d);
    TRI_CUDA_LAUNCH("flash_attention_query_gradient");
  });
}

}  // namespace tri::cuda
