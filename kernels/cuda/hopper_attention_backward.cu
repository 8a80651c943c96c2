// The backward pass of the project's attention on Hopper: kernels/cuda/hopper_attention.cuh. A block owns 128 keys of a
// key/value head and processes the band's query tiles from the last down and, for each, the group's heads. Two
// warpgroups multiply, each with 64 of the keys, whose dk and dv stay in its accumulators. Scores are computed
// transposed, keys by queries, so that weights and their gradients are already the A operands of dv and dk in
// registers. The gradients also go to shared memory, from which both warpgroups compute dq: 64 columns by 64 queries
// each. In the third warpgroup one thread loads boxes and another adds dq to its sums.
// dq is summed over key tiles in an fp32 workspace, in their order, as in flash_attention_backward.cu: a counter for
// each head's query tile names the block that adds next, and a ticket counter assigns key tiles in ascending order, so
// for its turn a block waits only for blocks that run or have finished. The copy engine adds, and the thread that waits
// does not multiply. Where documents or chunks decide the tiles, tables give their bounds and order
// (attention_tiles.cuh).
// A small kernel computes the statistics before, another rounds dq after.
// Blocks of a (sequence, key/value head) pair follow each other through the query tiles. What one has read and added
// is still in L2 for the next only if it is a few steps behind, since all blocks together touch 8 MiB a step. These
// distances grow where key tiles differ in work and from wave to wave, so with long sequences the blocks of a wave
// start together.
// Limits: a workspace of 4 bytes per element of q and 8 bytes per row of a head; parallelism is B · NKV · T / 128
// blocks. Source: Shah et al. 2024 (FlashAttention-3).
#include <algorithm>

#include "kernels/cuda/hopper_attention.cuh"
#include "kernels/cuda/workspace.h"

namespace tri::cuda {
namespace flash {
namespace {

using namespace hopper;

template <int kHeadSize>
struct BackwardTiles {
  static constexpr int kHead = kHeadSize, kBoxes = head_boxes(kHead);
  static constexpr int kConsumers = 2, kThreads = 128 * (kConsumers + 1);  // `kConsumers` warpgroups multiply
  static constexpr int kKeys = 64 * kConsumers, kStages = 2;
  // dq is two blocks of 64 columns by 64 queries, one per warpgroup: adjacent in a head, or in two boxes of queries.
  static constexpr bool kSplitColumns = kBoxes == 2;
  static constexpr int kQueryBoxes = kSplitColumns ? 1 : 2, kQueries = 64 * kQueryBoxes;
  static constexpr uint32_t kKeyBox = kKeys * kBoxRow, kQueryBox = kQueries * kBoxRow, kScoreBox = kKeys * kBoxRow,
                            kGradientBox = 16 * kBoxRow;
  static constexpr uint32_t kKeyBytes = kBoxes * kKeyBox, kQueryBytes = kBoxes * kQueryBox,
                            kScoreBytes = kQueryBoxes * kScoreBox, kBlockBytes = 64 * 64 * 4,
                            kSumBytes = kConsumers * kBlockBytes, kStatBytes = 2 * kQueries * 4;
  // Layout: keys; values; kStages tiles of queries, of douts; two of the scores' gradients; dq; statistics; barriers.
  static constexpr uint32_t kValuesAt = kKeyBytes, kQueriesAt = 2 * kKeyBytes,
                            kDoutsAt = kQueriesAt + kStages * kQueryBytes, kScoresAt = kDoutsAt + kStages * kQueryBytes,
                            kSumsAt = kScoresAt + 2 * kScoreBytes, kStatsAt = kSumsAt + kSumBytes,
                            kBarriersAt = kStatsAt + kStages * kStatBytes;
  static constexpr int kBarriers = 3 + 4 * kStages;
  static constexpr int kShared = kBarriersAt + 8 * kBarriers + 8;  // includes the ticket
  static constexpr int kSharedWithTables = kShared + (kStages + kKeys) * 4;
  static constexpr int kConsumerRegisters = kHead == 64 ? 224 : 232, kProducerRegisters = kHead == 64 ? 56 : 40;
};

// The workspace of a call, in whole tiles of queries: (B, NH, tiles) of
struct BackwardWork {
  float* sums;         // dq in fp32: per warpgroup (8 n-tiles, 128 threads) float4, in the order of its accumulators
  float* stats;        // (2, kQueries): log2(e) · lse, then delta
  int* turns;          // the number of key tiles added to the sums
  int* ticket;         // two numbers: the next block's ticket; 1 if blocks no longer wait for their wave
  int tiles;           // of queries, per head
  int key_tiles;       // per key/value head
  int pairs;           // (sequence, key/value head): B · NKV
  int pairs_together;  // processed concurrently
  int wave;            // blocks that start together; 0: each starts at once
  int most_cycles;     // longest wait of a block for its wave, in clock cycles
};

// delta[b, h, t] = sum_c dout · out, stored with the scaled lse. Mapping: one group of lanes per row of a head, sixteen
// bytes per lane.
template <class Tiles>
__global__ void __launch_bounds__(256)
    hopper_statistics_kernel(float* stats, const float* lse, const Bf16* dout, const Bf16* out, int tiles, Shape d) {
  constexpr int kHead = Tiles::kHead, kQueries = Tiles::kQueries, kLanes = row_lanes(kHead), kRows = 256 / kLanes;
  const int lane = threadIdx.x % kLanes, head = blockIdx.y, b = blockIdx.z;
#pragma unroll
  for (int n = 0; n < 4; ++n) {
    const int t = (static_cast<int>(blockIdx.x) * 4 + n) * kRows + static_cast<int>(threadIdx.x) / kLanes;
    const float delta = row_delta<kHead>(dout, out, d.out_at(b, t, head, kHead), lane, t < d.seq_len);
    if (t < tiles * kQueries && lane == 0) {
      float* to = stats + ((int64_t{b} * d.heads() + head) * tiles + t / kQueries) * 2 * kQueries + t % kQueries;
      to[0] = t < d.seq_len ? lse[d.stat_at(b, t, head)] * kLog2E : INFINITY;  // gives weights of 0 beyond the end
      to[kQueries] = delta;
    }
  }
}

// Waits until all blocks of the wave of `ticket` have started. Each section of pairs begins with a new wave: its first
// blocks have most queries, those before them fewest. If other kernels occupy multiprocessors, some blocks can only
// start when others have finished: the first one that has waited for `most_cycles` ends all waits of this launch.
__device__ __forceinline__ void wait_for_wave(const BackwardWork& work, int ticket) {
  int* const waits_ended = work.ticket + 1;
  const int section = work.pairs_together * work.key_tiles, first = ticket / section * section;
  const int last = min(first + section, static_cast<int>(gridDim.x));
  const int wanted = min(first + ((ticket - first) / work.wave + 1) * work.wave, last);
  const long long start = clock64();
  while (load_acquire(work.ticket) < wanted && load_acquire(waits_ended) == 0)
    if (clock64() - start > work.most_cycles) store_release(waits_ended, 1);
}

template <class Tiles, bool kCapped, bool kTables>
__global__ void __launch_bounds__(Tiles::kThreads, 1)
    hopper_backward_kernel(const __grid_constant__ CUtensorMap key_map, const __grid_constant__ CUtensorMap query_map,
                           const __grid_constant__ CUtensorMap dout_map, const __grid_constant__ CUtensorMap dkey_map,
                           BackwardWork work, Shape d, BackwardBounds bounds) {
  constexpr int kHead = Tiles::kHead, kQueries = Tiles::kQueries, kKeys = Tiles::kKeys, kBoxes = Tiles::kBoxes,
                kStages = Tiles::kStages, kConsumers = Tiles::kConsumers;
  extern __shared__ __align__(1024) unsigned char shared[];
  const uint32_t base = shared_address(shared), barriers = base + Tiles::kBarriersAt;
  // "full": the data has arrived. "free": its readers have finished. The barriers of a ring's stages are contiguous.
  const uint32_t key_full = barriers, sum_full = barriers + 8, sum_free = barriers + 16, query_full = barriers + 24,
                 query_free = query_full + 8 * kStages, dout_full = query_free + 8 * kStages,
                 dout_free = dout_full + 8 * kStages;
  int* const ticket = reinterpret_cast<int*>(shared + Tiles::kBarriersAt + 8 * Tiles::kBarriers);
  // With tables: the positions of the first queries of the stages, and the last ones that attend to each key.
  volatile int* const positions = ticket + 2;
  int* const last_positions = ticket + 2 + kStages;
  const int warpgroup = static_cast<int>(threadIdx.x) / 128;
  if (threadIdx.x == 0) {
    *ticket = atomicAdd(work.ticket, 1);
    barrier_init(key_full, 1);
    barrier_init(sum_full, 128 * kConsumers);
    barrier_init(sum_free, 1);
    init_rings<kStages>(query_full, query_free, dout_full, dout_free, 4 * kConsumers);
    if (work.wave > 0) wait_for_wave(work, *ticket);
  }
  __syncthreads();

  // The order of the work: sections of a few (sequence, key/value head) pairs; within a section key tiles ascend, which
  // starts with those that have most queries, or are in the order of the tables.
  const int64_t index = *ticket, whole = int64_t{work.pairs_together} * work.key_tiles;
  const int first_pair = static_cast<int>(index / whole) * work.pairs_together, rest = static_cast<int>(index % whole);
  const int together = min(work.pairs_together, work.pairs - first_pair), pair = first_pair + rest % together;
  const int b = pair / d.kv_heads, kv = pair % d.kv_heads;
  KeyTile own{};
  if constexpr (kTables) own = bounds.key_tiles[int64_t{b} * work.key_tiles + rest / together];
  const int key_tile = kTables ? own.tile : rest / together;
  const int first_key = key_tile * kKeys, valid_keys = min(kKeys, d.seq_len - first_key);
  // With tables, these count the steps of KeyTile.
  const int first_tile = kTables ? 1 : first_key / kQueries;
  const int last_tile = kTables ? own.steps() : d.last_query(first_key + valid_keys - 1) / kQueries;
  const QkvRow& key_row = kTables ? bounds.keys : d.row;
  const int head = kv * d.group;  // of the group's first query
  // Indices among all heads of a row.
  const int query_head = d.row.query(kv, 0) / kHead, key_head = key_row.key(kv) / kHead,
            value_head = key_row.value(kv) / kHead;

  if (warpgroup == 0) {
    lower_registers<Tiles::kProducerRegisters>();
    if (threadIdx.x == 0) {
      barrier_expect(key_full, 2 * Tiles::kKeyBytes);
#pragma unroll
      for (int box = 0; box < kBoxes; ++box) {
        load_box(base + box * Tiles::kKeyBox, &key_map, key_full, box * kBoxColumns, key_head, first_key, b);
        load_box(base + Tiles::kValuesAt + box * Tiles::kKeyBox, &key_map, key_full, box * kBoxColumns, value_head,
                 first_key, b);
      }
      RingPlace<kStages> place;
#pragma unroll 1
      for (int step = last_tile; step >= first_tile; --step)
#pragma unroll 1
        for (int g = 0; g < d.group; ++g) {
          const int tile = kTables ? own.query_tile(step) : step;
          const uint32_t at = place.stage * Tiles::kQueryBytes, barrier = 8 * place.stage;
          barrier_wait(query_free + barrier, place.round ^ 1);
          if constexpr (kTables) positions[place.stage] = bounds.band.position(tile * kQueries);
          barrier_expect(query_full + barrier, Tiles::kQueryBytes + Tiles::kStatBytes);
#pragma unroll
          for (int box = 0; box < kBoxes; ++box)
            load_box(base + Tiles::kQueriesAt + at + box * Tiles::kQueryBox, &query_map, query_full + barrier,
                     box * kBoxColumns, query_head + g, tile * kQueries, b);
          load_bytes(base + Tiles::kStatsAt + place.stage * Tiles::kStatBytes,
                     work.stats + ((int64_t{b} * d.heads() + head + g) * work.tiles + tile) * 2 * kQueries,
                     Tiles::kStatBytes, query_full + barrier);
          barrier_wait(dout_free + barrier, place.round ^ 1);
          barrier_expect(dout_full + barrier, Tiles::kQueryBytes);
#pragma unroll
          for (int box = 0; box < kBoxes; ++box)
            load_box(base + Tiles::kDoutsAt + at + box * Tiles::kQueryBox, &dout_map, dout_full + barrier,
                     box * kBoxColumns, head + g, tile * kQueries, b);
          place.next();
        }
    } else if (threadIdx.x == 32) {
      uint32_t round = 0;
#pragma unroll 1
      for (int step = last_tile; step >= first_tile; --step) {
        const int tile = kTables ? own.query_tile(step) : step;
        int own_turn;
        if constexpr (kTables)
          own_turn =
              bounds.turns[int64_t{b} * work.tiles + tile].of(key_tile, bounds.band.position(tile * kQueries) / kKeys);
        else
          own_turn = key_tile - d.first_key(tile * kQueries) / kKeys;
#pragma unroll 1
        for (int g = 0; g < d.group; ++g, round ^= 1) {
          const int64_t item = (int64_t{b} * d.heads() + head + g) * work.tiles + tile;
          float* const to = work.sums + item * (Tiles::kSumBytes / 4);
          barrier_wait(sum_full, round);
          if (own_turn == 0) {
            store_bytes(to, base + Tiles::kSumsAt, Tiles::kSumBytes);
          } else {
            while (load_acquire(work.turns + item) != own_turn) {
            }
            fence_async_proxy_global();
            add_floats(to, base + Tiles::kSumsAt, Tiles::kSumBytes);
          }
          store_commit();
          store_wait_read();
          barrier_arrive(sum_free);
          store_wait();
          fence_async_proxy_global();
          store_release(work.turns + item, own_turn + 1);
        }
      }
    }
  } else {
    raise_registers<Tiles::kConsumerRegisters>();
    const int consumer = warpgroup - 1, thread = static_cast<int>(threadIdx.x) % 128, lane = thread % 32,
              warp = thread / 32;
    const float scale = score_scale<kCapped>(d) * kLog2E;
    const int own_key = first_key + consumer * 64;  // this warpgroup's first key
    const uint64_t key_rows = operand(base + consumer * 64 * kBoxRow),
                   value_rows = operand(base + Tiles::kValuesAt + consumer * 64 * kBoxRow),
                   query_rows = operand(base + Tiles::kQueriesAt), dout_rows = operand(base + Tiles::kDoutsAt),
                   query_columns = operand(base + Tiles::kQueriesAt, Tiles::kQueryBox),
                   dout_columns = operand(base + Tiles::kDoutsAt, Tiles::kQueryBox),
                   key_columns = operand(base + (Tiles::kSplitColumns ? consumer * Tiles::kKeyBox : 0), Tiles::kKeyBox),
                   score_columns =
                       operand(base + Tiles::kScoresAt + (Tiles::kSplitColumns ? 0 : consumer * Tiles::kScoreBox),
                               Tiles::kScoreBox);
    const uint32_t score_row = base + Tiles::kScoresAt + (consumer * 64 + warp * 16) * kBoxRow;
    const uint32_t sum_at = base + Tiles::kSumsAt + consumer * Tiles::kBlockBytes + thread * 16;

    float dk[kHead / 2], dv[kHead / 2];
#pragma unroll
    for (int i = 0; i < kHead / 2; ++i) dk[i] = dv[i] = 0.0f;
    if constexpr (kTables) {
      // The last positions that attend to this warpgroup's keys.
      if (thread < 64) {
        const int key = own_key + thread, tile_last = first_key + kKeys - 1;
        const bool to_end = bounds.band.document_start(b, tile_last) <= key;
        last_positions[consumer * 64 + thread] =
            bounds.band.last_position(key, to_end ? own.end : bounds.band.document_end(b, key, tile_last));
      }
      named_barrier_sync(1, 128 * kConsumers);
    }
    RingPlace<kStages> place;
    uint32_t odd = 0;  // whether the step is odd
    barrier_wait(key_full, 0);
#pragma unroll 1
    for (int tile = last_tile, g = 0; tile >= first_tile; odd ^= 1) {
      const uint32_t at = place.stage * Tiles::kQueryBytes, barrier = 8 * place.stage;
      const uint32_t stat_at = base + Tiles::kStatsAt + place.stage * Tiles::kStatBytes + lane % 4 * 8;
      int first_query = tile * kQueries;
      float s[kQueries / 2], ds[kQueries / 2];
      barrier_wait(query_full + barrier, place.round);
      if constexpr (kTables) first_query = positions[place.stage];
      wgmma_fence();
#pragma unroll
      for (int k = 0; k < kHead / 16; ++k)
        wgmma<0, 0>(s, ahead(key_rows, k / 4 * Tiles::kKeyBox + k % 4 * 32),
                    ahead(query_rows, at + k / 4 * Tiles::kQueryBox + k % 4 * 32), k > 0);
      wgmma_commit();
      barrier_wait(dout_full + barrier, place.round);
      wgmma_fence();
#pragma unroll
      for (int k = 0; k < kHead / 16; ++k)
        wgmma<0, 0>(ds, ahead(value_rows, k / 4 * Tiles::kKeyBox + k % 4 * 32),
                    ahead(dout_rows, at + k / 4 * Tiles::kQueryBox + k % 4 * 32), k > 0);
      wgmma_commit();
      wgmma_wait<1>();
      hold(s);
      if constexpr (kCapped) cap_scores(s, d);
      const bool edge =
          own_key + 63 > first_query || (kTables ? first_query + kQueries - 1 > last_positions[consumer * 64]
                                                 : own_key <= d.below(first_query + kQueries - 1));
#pragma unroll
      for (int n = 0; n < kQueries / 8; ++n) {
        const float2 lse = load_shared_float2(stat_at + n * 32);
#pragma unroll
        for (int e = 0; e < 4; ++e) s[n * 4 + e] = exp2_fast(fmaf(s[n * 4 + e], scale, e % 2 == 0 ? -lse.x : -lse.y));
      }
      if (edge) {
        const int key =
            own_key + warp * 16 + lane / 4 - first_query - lane % 4 * 2;  // relative to the lane's first query
        int last[2] = {0, 0};                                             // relative to the same query
        if constexpr (kTables)
#pragma unroll
          for (int half = 0; half < 2; ++half)
            last[half] = last_positions[consumer * 64 + warp * 16 + lane / 4 + half * 8] - first_query - lane % 4 * 2;
#pragma unroll
        for (int n = 0; n < kQueries / 8; ++n)
#pragma unroll
          for (int e = 0; e < 4; ++e) {
            const int behind = n * 8 + e % 2 - e / 2 * 8 - key;  // distance from the key to the query
            if (behind < 0 || (kTables ? n * 8 + e % 2 > last[e / 2] : d.window != 0 && behind >= d.window))
              s[n * 4 + e] = 0.0f;
          }
      }
      hold(s);
      wgmma_wait<0>();
      hold(ds);
#pragma unroll
      for (int n = 0; n < kQueries / 8; ++n) {
        const float2 delta = load_shared_float2(stat_at + kQueries * 4 + n * 32);
#pragma unroll
        for (int e = 0; e < 4; ++e) ds[n * 4 + e] = s[n * 4 + e] * (ds[n * 4 + e] - (e % 2 == 0 ? delta.x : delta.y));
        if constexpr (kCapped) {
          const float2 lse = load_shared_float2(stat_at + n * 32);
#pragma unroll
          for (int e = 0; e < 4; ++e) ds[n * 4 + e] *= cap_slope(s[n * 4 + e], e % 2 == 0 ? lse.x : lse.y, d);
        }
      }
      uint32_t weights[kQueries / 16][4], dscores[kQueries / 16][4];
#pragma unroll
      for (int k = 0; k < kQueries / 16; ++k)
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          weights[k][i] = pack_bf16(s[k * 8 + i * 2], s[k * 8 + i * 2 + 1]);
          dscores[k][i] = pack_bf16(ds[k * 8 + i * 2], ds[k * 8 + i * 2 + 1]);
        }
      hold(dv);
      wgmma_fence();
#pragma unroll
      for (int k = 0; k < kQueries / 16; ++k) wgmma<1>(dv, weights[k], ahead(dout_columns, at + k * 16 * kBoxRow));
      wgmma_commit();
#pragma unroll
      for (int k = 0; k < kQueries / 16; ++k)
        store_matrix(score_row + odd * Tiles::kScoreBytes + k / 4 * Tiles::kScoreBox + block_at(lane, k % 4),
                     dscores[k]);
      fence_async_proxy();
      named_barrier_sync(1, 128 * kConsumers);

      float sum[32];
      wgmma_fence();
#pragma unroll
      for (int k = 0; k < kKeys / 16; ++k)
        wgmma<1, 1>(sum, ahead(key_columns, k * 16 * kBoxRow),
                    ahead(score_columns, odd * Tiles::kScoreBytes + k * 16 * kBoxRow), k > 0);
      wgmma_commit();
      hold(dk);
      wgmma_fence();
#pragma unroll
      for (int k = 0; k < kQueries / 16; ++k) wgmma<1>(dk, dscores[k], ahead(query_columns, at + k * 16 * kBoxRow));
      wgmma_commit();
      wgmma_wait<1>();
      hold(dv);
      hold(sum);
      if (lane == 0) barrier_arrive(dout_free + barrier);
      barrier_wait(sum_free, odd ^ 1);
#pragma unroll
      for (int n = 0; n < 8; ++n)
        store_shared16(sum_at + n * 128 * 16, sum[n * 4], sum[n * 4 + 1], sum[n * 4 + 2], sum[n * 4 + 3]);
      fence_async_proxy();
      barrier_arrive(sum_full);
      wgmma_wait<0>();
      hold(dk);
      if (lane == 0) barrier_arrive(query_free + barrier);
      place.next();
      if (++g == d.group) g = 0, --tile;
    }

    named_barrier_sync(1, 128 * kConsumers);  // the tiles of keys and values are now free
    const uint32_t out_at = base + (consumer * 4 + warp) * kBoxes * Tiles::kGradientBox;
#pragma unroll
    for (int k = 0; k < kHead / 16; ++k) {
      const uint32_t to = out_at + k / 4 * Tiles::kGradientBox + block_at(lane, k % 4);
      uint32_t key_item[4], value_item[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        key_item[i] = pack_bf16(dk[k * 8 + i * 2] * d.scale, dk[k * 8 + i * 2 + 1] * d.scale);
        value_item[i] = pack_bf16(dv[k * 8 + i * 2], dv[k * 8 + i * 2 + 1]);
      }
      store_matrix(to, key_item);
      store_matrix(to + Tiles::kValuesAt, value_item);
    }
    fence_async_proxy();
    __syncwarp();
    if (lane == 0) {
#pragma unroll
      for (int box = 0; box < kBoxes; ++box) {
        const uint32_t from = out_at + box * Tiles::kGradientBox;
        store_box(&dkey_map, from, box * kBoxColumns, key_head, own_key + warp * 16, b);
        store_box(&dkey_map, from + Tiles::kValuesAt, box * kBoxColumns, value_head, own_key + warp * 16, b);
      }
      store_commit();
      store_wait();
    }
  }
}

// dqkv's queries = scale · the workspace's sums. Mapping: one block per query tile of a head; a warp has 16 columns of
// 64 queries, then each thread stores sixteen bytes.
template <class Tiles>
__global__ void __launch_bounds__(256) hopper_query_gradient_kernel(Bf16* dqkv, const float* sums, Shape d) {
  constexpr int kHead = Tiles::kHead, kQueries = Tiles::kQueries, kRow = Tiles::kBoxes * kBoxRow;
  __shared__ __align__(16) unsigned char shared[kQueries * kRow];
  const int thread = static_cast<int>(threadIdx.x), lane = thread % 32, warp = thread / 32 % 4, part = thread / 128;
  const int tile = blockIdx.x, head = blockIdx.y, b = blockIdx.z;
  const int64_t item = (int64_t{b} * d.heads() + head) * gridDim.x + tile;
  const float4* from =
      reinterpret_cast<const float4*>(sums + item * (Tiles::kSumBytes / 4)) + part * 8 * 128 + thread % 128;
  // Rows are queries, swizzled within 128 bytes.
  const uint32_t row = (Tiles::kSplitColumns ? 0 : part * 64) + (lane >> 4) * 8 + (lane & 7);
  const uint32_t chunk = warp * 2 + (lane >> 3 & 1);
  const uint32_t to =
      shared_address(shared) + row * kRow + (Tiles::kSplitColumns ? part * kBoxRow : 0) + ((chunk ^ (lane & 7)) << 4);
#pragma unroll
  for (int n = 0; n < 8; n += 2) {
    const float4 x = __ldcs(from + n * 128), y = __ldcs(from + (n + 1) * 128);
    store_matrix_transposed(to + n * 8 * kRow,
                            {pack_bf16(x.x * d.scale, x.y * d.scale), pack_bf16(x.z * d.scale, x.w * d.scale),
                             pack_bf16(y.x * d.scale, y.y * d.scale), pack_bf16(y.z * d.scale, y.w * d.scale)});
  }
  __syncthreads();
  constexpr int kChunks = kHead / 8;
  for (int n = thread; n < kQueries * kChunks; n += 256) {
    const int q = n / kChunks, c = n % kChunks, t = tile * kQueries + q;
    if (t >= d.seq_len) break;
    const uint4 value = load_shared16(shared_address(shared) + q * kRow + c / 8 * kBoxRow + (((c ^ q) & 7) << 4));
    *reinterpret_cast<uint4*>(dqkv + d.qkv_at(b, t, d.row.query(head / d.group, head % d.group)) + c * 8) = value;
  }
}

// More concurrent pairs balance the load better; with fewer, more blocks share what they read from memory.
constexpr int kPairsTogether = 32;

// Sets how many blocks start together, as many as run at once, or 0. With a causal mask the concurrent blocks of a pair
// differ in work by as many queries as they have keys, of which a rank has its part with context parallelism. The first
// to finish waits for that: it must be a small part of a long sequence. Documents and windows leave the tiles less
// work, and dq in L2.
template <class Tiles>
void set_wave(BackwardWork& work, const AttentionBackward& a, CudaStream& stream) {
  constexpr int kLong = 32768, kSmallPart = 24;
  constexpr int64_t kStepCycles = 8192;  // at most, of a tile of queries of one head; about 4,000 without other kernels
  const int64_t blocks = num_multiprocessors(stream), differ = ceil_div(blocks, work.pairs_together) * Tiles::kKeys;
  const bool whole = a.first_key.empty() && (a.window == 0 || a.window >= key_len_of(a));
  const bool is_long = a.seq_len >= kLong && key_len_of(a) >= kSmallPart * differ;
  work.wave = whole && is_long ? static_cast<int>(blocks) : 0;
  work.most_cycles = static_cast<int>(std::min<int64_t>(differ / Tiles::kQueries * a.group * kStepCycles, 1 << 30));
}

}  // namespace
}  // namespace flash

using namespace flash;

void hopper_attention_backward(const AttentionBackward& a, CudaStream& stream) {
  TRI_REQUIRE(a.qkv.dtype == Dtype::kBF16, "no flash attention kernel for {}", enum_name(a.qkv.dtype));
  const Shape d = shape_of(a);
  const FirstHead first = first_head_of(a);
  const int64_t batch = a.qkv[0] / d.seq_len, heads = int64_t{d.kv_heads} * d.group, pairs = batch * d.kv_heads;
  with_head_size<kHopperBackwardMaxHeadSize>(d.row.head_size, [&](auto head_size) {
    constexpr int kHead = head_size();
    using Tiles = BackwardTiles<kHead>;
    const int64_t tiles = ceil_div(d.seq_len, Tiles::kQueries), key_tiles = ceil_div(key_len_of(a), Tiles::kKeys);
    const int64_t items = batch * heads * tiles;
    const size_t sum_bytes = static_cast<size_t>(items) * Tiles::kSumBytes,
                 stat_bytes = static_cast<size_t>(items) * Tiles::kStatBytes,
                 turn_bytes =
                     (static_cast<size_t>(items) + 2) * sizeof(int),  // includes the ticket and the end of waits
        tables_at = round_up(static_cast<int64_t>(sum_bytes + stat_bytes + turn_bytes), 16);
    // A step of a block adds 32 KiB to dq, which costs less in L2. Measured with documents of 512 to 4,096 tokens.
    constexpr TileSizes kSizes{.queries = Tiles::kQueries, .keys = Tiles::kKeys, .near = true};
    char* memory = static_cast<char*>(workspace(stream, Scratch::kAttention, tables_at + table_bytes(a, kSizes)));
    int* turns = reinterpret_cast<int*>(memory + sum_bytes + stat_bytes);
    TRI_CUDA(cudaMemsetAsync(turns, 0, turn_bytes, stream));
    const int64_t together = ceil_div(pairs, ceil_div(pairs, kPairsTogether));  // nearly equal sections
    BackwardWork work{.sums = reinterpret_cast<float*>(memory),
                      .stats = reinterpret_cast<float*>(memory + sum_bytes),
                      .turns = turns,
                      .ticket = turns + items,
                      .tiles = static_cast<int>(tiles),
                      .key_tiles = static_cast<int>(key_tiles),
                      .pairs = static_cast<int>(pairs),
                      .pairs_together = static_cast<int>(together)};
    set_wave<Tiles>(work, a, stream);
    const BackwardBounds bounds = bounds_of(a, kSizes, memory + tables_at, stream);

    constexpr int kRows = 4 * 256 / row_lanes(kHead);  // per block
    const dim3 rows(static_cast<unsigned>(ceil_div(tiles * Tiles::kQueries, kRows)), static_cast<unsigned>(heads),
                    static_cast<unsigned>(batch));
    hopper_statistics_kernel<Tiles><<<rows, 256, 0, stream>>>(work.stats, pointer<float>(a.lse) + first.stat,
                                                              pointer<Bf16>(a.dout) + first.out,
                                                              pointer<Bf16>(a.out) + first.out, work.tiles, d);
    TRI_CUDA_LAUNCH("hopper_attention_statistics");
    static_assert(Tiles::kSharedWithTables <= kHopperSharedBytes);
    const auto map_of_queries = [&](const Tensor& rows, int64_t num_heads, int64_t from) {
      return box_map(rows.data, batch, d.seq_len, num_heads, kHead, Tiles::kQueries, from / kHead);
    };
    const auto map_of_keys = [&](const Tensor& rows, int box_rows) {
      return box_map(rows.data, batch, bounds.band.key_len, bounds.keys.width / kHead, kHead, box_rows);
    };
    with_flags(a.softcap > 0, has_band(a), [&](auto capped, auto with_tables) {
      constexpr bool kTables = decltype(with_tables)::value;
      constexpr int kShared = kTables ? Tiles::kSharedWithTables : Tiles::kShared;
      const auto kernel = hopper_backward_kernel<Tiles, decltype(capped)::value, kTables>;
      allow_shared(kernel, kShared);
      kernel<<<static_cast<unsigned>(pairs * key_tiles), Tiles::kThreads, kShared, stream>>>(
          map_of_keys(keys_of(a), Tiles::kKeys), map_of_queries(a.qkv, d.row.width / kHead, first.query),
          map_of_queries(a.dout, d.row_heads, first.out), map_of_keys(key_gradients_of(a), 16), work, d, bounds);
    });
    TRI_CUDA_LAUNCH("hopper_attention_backward");
    const dim3 query_tiles(static_cast<unsigned>(tiles), static_cast<unsigned>(heads), static_cast<unsigned>(batch));
    hopper_query_gradient_kernel<Tiles>
        <<<query_tiles, 256, 0, stream>>>(pointer<Bf16>(a.dqkv) + first.query, work.sums, d);
    TRI_CUDA_LAUNCH("hopper_attention_query_gradient");
  });
}

}  // namespace tri::cuda
