// The forward pass of the project's attention on Hopper: kernels/cuda/hopper_attention.cuh. One block per
// multiprocessor runs for the whole launch: a thread of one warpgroup loads boxes of queries, keys and values; two
// warpgroups multiply, each with 64 of a tile's 128 queries. They process the band's key tiles from the diagonal down.
// Scores stay in the accumulators, where they become the A operand of the product with the values, which runs
// concurrently with the next tile's scores and their exponentials. Source: Shah et al. 2024 (FlashAttention-3),
// algorithm 2.
// A ticket counter assigns tiles of queries, those with most keys first.
#include "kernels/cuda/hopper_attention.cuh"
#include "kernels/cuda/workspace.h"

namespace tri::cuda {
namespace flash {
namespace {

using namespace hopper;

template <int kHeadSize>
struct ForwardTiles {
  static constexpr int kHead = kHeadSize, kBoxes = head_boxes(kHead);
  static constexpr int kConsumers = 2, kThreads = 128 * (kConsumers + 1);  // `kConsumers` warpgroups multiply
  static constexpr int kQueries = 64 * kConsumers, kKeys = kHead == 256 ? 64 : 128, kStages = 2;
  // The running maximum of a row's scores may lag: it is raised only when it is more than 8 too small, as a power of
  // two, which avoids most products with `keep`. With heads of 64 there are too few of these to be worth it.
  static constexpr bool kLateMaximum = kHead > 64;
  static constexpr uint32_t kQueryBox = kQueries * kBoxRow, kKeyBox = kKeys * kBoxRow, kWarpRows = 16 * kBoxRow;
  static constexpr uint32_t kQueryBytes = kBoxes * kQueryBox, kKeyBytes = kBoxes * kKeyBox;
  // Where shared memory is too small for both, outputs replace the queries, so that the next ones arrive later.
  static constexpr bool kOutInQueries = kHead == 256;
  // Layout: queries; the warps' outputs; kStages tiles each of keys and values; barriers.
  static constexpr uint32_t kOutAt = kOutInQueries ? 0 : kQueryBytes, kKeysAt = kOutAt + kQueryBytes,
                            kValuesAt = kKeysAt + kStages * kKeyBytes, kBarriersAt = kValuesAt + kStages * kKeyBytes;
  // Bytes from a warp's box of 16 rows of output to its next one, and from its first one to that of the next warp.
  static constexpr uint32_t kOutBox = kOutInQueries ? kQueryBox : kWarpRows,
                            kOutWarp = kOutInQueries ? kWarpRows : kBoxes * kWarpRows;
  static constexpr int kBarriers = 2 + 4 * kStages;
  static constexpr int kShared = kBarriersAt + 8 * kBarriers + 16;  // includes the item
  static constexpr int kConsumerRegisters = 232, kProducerRegisters = 40;
};

// The work of a launch: an item is a tile of queries of a head.
struct ForwardWork {
  int* ticket;  // items assigned in addition to each block's first
  int items;
  int tiles;           // per head
  int pairs;           // (sequence, key/value head): B · NKV
  int pairs_together;  // processed concurrently
};

struct Item {
  int b, kv, g, first_query;
  int first_tile, last_tile;  // tiles of keys that the band overlaps
};

// Item order: sections of a few pairs, whose keys and values stay in L2; last tiles first, or those with most keys if
// there are tables; within a tile all heads. `entry`: of the item in the tables, or null to read it there.
template <class Tiles, bool kTables>
__device__ __forceinline__ Item item_of(int index, const ForwardWork& work, const Shape& d, const ForwardBounds& bounds,
                                        const QueryTile* entry = nullptr) {
  const int section_items = work.pairs_together * d.group * work.tiles;
  const int section = index / section_items, rest = index - section * section_items;
  const int first_pair = section * work.pairs_together;
  const int heads = min(work.pairs_together, work.pairs - first_pair) * d.group;
  const int tile = work.tiles - 1 - rest / heads, head = rest % heads;
  const int pair = first_pair + head / d.group, first_query = tile * Tiles::kQueries;
  if constexpr (kTables) {
    const int b = pair / d.kv_heads;
    const QueryTile own = entry != nullptr ? *entry : bounds.query_tiles[int64_t{b} * work.tiles + rest / heads];
    return {b, pair % d.kv_heads, head % d.group, own.tile * Tiles::kQueries, own.first, own.last};
  }
  return {pair / d.kv_heads,
          pair % d.kv_heads,
          head % d.group,
          first_query,
          d.first_key(first_query) / Tiles::kKeys,
          (min(first_query + Tiles::kQueries, d.seq_len) - 1) / Tiles::kKeys};
}

template <class Tiles, bool kCapped, bool kTables>
__global__ void __launch_bounds__(Tiles::kThreads, 1)
    hopper_forward_kernel(const __grid_constant__ CUtensorMap query_map, const __grid_constant__ CUtensorMap key_map,
                          const __grid_constant__ CUtensorMap out_map, float* lse, ForwardWork work, Shape d,
                          ForwardBounds bounds) {
  constexpr int kHead = Tiles::kHead, kKeys = Tiles::kKeys, kBoxes = Tiles::kBoxes, kStages = Tiles::kStages,
                kConsumers = Tiles::kConsumers;
  extern __shared__ __align__(1024) unsigned char shared[];
  const uint32_t base = shared_address(shared), barriers = base + Tiles::kBarriersAt;
  // "full": the boxes have arrived. "free": all warps have finished. The barriers of a ring's stages are contiguous.
  const uint32_t query_full = barriers, query_free = barriers + 8, key_full = barriers + 16,
                 key_free = key_full + 8 * kStages, value_full = key_free + 8 * kStages,
                 value_free = value_full + 8 * kStages;
  // The index of the item and, with tables, its tile and the first and last tile of keys.
  volatile int* const item_index = reinterpret_cast<volatile int*>(shared + Tiles::kBarriersAt + 8 * Tiles::kBarriers);
  const int warpgroup = static_cast<int>(threadIdx.x) / 128;
  if (threadIdx.x == 0) {
    barrier_init(query_full, 1);
    barrier_init(query_free, 4 * kConsumers);
    init_rings<kStages>(key_full, key_free, value_full, value_free, 4 * kConsumers);
  }
  __syncthreads();

  if (warpgroup == 0) {
    lower_registers<Tiles::kProducerRegisters>();
    if (threadIdx.x != 0) return;
    prefetch_map(&query_map);
    prefetch_map(&key_map);
    prefetch_map(&out_map);
    RingPlace<kStages> key, value;
    uint32_t round = 0;
    const auto load = [&](RingPlace<kStages>& at, uint32_t full, uint32_t free, uint32_t tiles, int head, int tile,
                          int b) {
      barrier_wait(free + 8 * at.stage, at.round ^ 1);
      barrier_expect(full + 8 * at.stage, Tiles::kKeyBytes);
#pragma unroll
      for (int box = 0; box < kBoxes; ++box)
        load_box(tiles + at.stage * Tiles::kKeyBytes + box * Tiles::kKeyBox, &key_map, full + 8 * at.stage,
                 box * kBoxColumns, head, tile * kKeys, b);
      at.next();
    };
    for (int next = static_cast<int>(blockIdx.x);; round ^= 1) {
      const int index = next;
      barrier_wait(query_free, round ^ 1);
      *item_index = index < work.items ? index : -1;
      if (index >= work.items) {
        barrier_arrive(query_full);
        break;
      }
      next = static_cast<int>(gridDim.x) + atomicAdd(work.ticket, 1);  // requested early because it takes long
      const Item item = item_of<Tiles, kTables>(index, work, d, bounds);
      if constexpr (kTables) {
        item_index[1] = item.first_query / Tiles::kQueries;
        item_index[2] = item.first_tile;
        item_index[3] = item.last_tile;
      }
      const QkvRow& keys = kTables ? bounds.keys : d.row;
      const int key_head = keys.key(item.kv) / kHead, value_head = keys.value(item.kv) / kHead;
      barrier_expect(query_full, Tiles::kQueryBytes);
#pragma unroll
      for (int box = 0; box < kBoxes; ++box)
        load_box(base + box * Tiles::kQueryBox, &query_map, query_full, box * kBoxColumns,
                 d.row.query(item.kv, item.g) / kHead, item.first_query, item.b);
      // Loads in the order of use.
      load(key, key_full, key_free, base + Tiles::kKeysAt, key_head, item.last_tile, item.b);
      for (int tile = item.last_tile - 1; tile >= item.first_tile; --tile) {
        load(key, key_full, key_free, base + Tiles::kKeysAt, key_head, tile, item.b);
        load(value, value_full, value_free, base + Tiles::kValuesAt, value_head, tile + 1, item.b);
      }
      load(value, value_full, value_free, base + Tiles::kValuesAt, value_head, item.first_tile, item.b);
    }
  } else {
    raise_registers<Tiles::kConsumerRegisters>();
    const int consumer = warpgroup - 1, lane = static_cast<int>(threadIdx.x) % 32,
              warp = static_cast<int>(threadIdx.x) / 32 % 4;
    const float scale = score_scale<kCapped>(d) * kLog2E;  // for exponentials to base 2
    const uint64_t queries = operand(base + consumer * 64 * kBoxRow), keys = operand(base + Tiles::kKeysAt),
                   values = operand(base + Tiles::kValuesAt, Tiles::kKeyBox);
    const uint32_t out_at = base + Tiles::kOutAt + (consumer * 4 + warp) * Tiles::kOutWarp;
    RingPlace<kStages> key, value;

    float s[kKeys / 2], acc[kHead / 2];
    uint32_t weights[kKeys / 16][4];
    const auto multiply_scores = [&] {
      hold(s);
      wgmma_fence();
#pragma unroll
      for (int k = 0; k < kHead / 16; ++k)
        wgmma<0, 0>(s, ahead(queries, k / 4 * Tiles::kQueryBox + k % 4 * 32),
                    ahead(keys, key.stage * Tiles::kKeyBytes + k / 4 * Tiles::kKeyBox + k % 4 * 32), k > 0);
      wgmma_commit();
    };
    const auto multiply_values = [&] {
      hold(acc);
      wgmma_fence();
#pragma unroll
      for (int k = 0; k < kKeys / 16; ++k)
        wgmma<1>(acc, weights[k], ahead(values, value.stage * Tiles::kKeyBytes + k * 16 * kBoxRow));
      wgmma_commit();
    };
    const auto pack_weights = [&] {
#pragma unroll
      for (int k = 0; k < kKeys / 16; ++k)
#pragma unroll
        for (int i = 0; i < 4; ++i) weights[k][i] = pack_bf16(s[k * 8 + i * 2], s[k * 8 + i * 2 + 1]);
    };
    const auto arrive = [&](uint32_t barrier) {
      if (lane == 0) barrier_arrive(barrier);
    };

    for (uint32_t round = 0;; round ^= 1) {
      barrier_wait(query_full, round);
      // Only lane 0 reads the index, because lane 0 also allows the next one to be written.
      const int index = __shfl_sync(0xFFFFFFFFu, lane == 0 ? *item_index : 0, 0);
      if (index < 0) break;
      QueryTile entry{};
      if constexpr (kTables) {
        int* const fields[3] = {&entry.tile, &entry.first, &entry.last};
#pragma unroll
        for (int i = 0; i < 3; ++i) *fields[i] = __shfl_sync(0xFFFFFFFFu, lane == 0 ? item_index[1 + i] : 0, 0);
      }
      const Item item = item_of<Tiles, kTables>(index, work, d, bounds, &entry);
      const int head = item.kv * d.group + item.g, first_row = item.first_query + consumer * 64,
                warp_row = first_row + warp * 16, row = warp_row + lane / 4;  // this lane's rows: row, row + 8
      // With tables: from a row to its position, and the first keys of this lane's rows and of the warpgroup's last.
      int ahead_of_row = 0, lowest[2] = {0, 0}, last_lowest = 0;
      if constexpr (kTables) {
        ahead_of_row = bounds.band.position(item.first_query) - item.first_query;
#pragma unroll
        for (int half = 0; half < 2; ++half)
          lowest[half] = bounds.band.first_key(item.b, row + half * 8 + ahead_of_row);
        last_lowest = bounds.band.first_key(item.b, first_row + 63 + ahead_of_row);
      }

      float most[2] = {-INFINITY, -INFINITY}, sum[2] = {0.0f, 0.0f}, keep[2];  // `sum`: over this lane's keys
      bool raised = true;
      // Turns scores into weights; `keep` is the factor for the sums so far.
      const auto softmax = [&](int tile) {
        if constexpr (kCapped) cap_scores(s, d);
        const int first_key = tile * kKeys;
        if (first_key + kKeys - 1 > first_row + ahead_of_row ||
            (kTables ? first_key < last_lowest : first_key <= d.below(first_row + 63))) {
#pragma unroll
          for (int half = 0; half < 2; ++half) {
            const int lane_key = first_key + lane % 4 * 2;  // the others are relative to it
            const int last = row + ahead_of_row + half * 8 - lane_key;
            const int below = kTables ? lowest[half] - 1 - lane_key : d.window == 0 ? -1 : last - d.window;
#pragma unroll
            for (int n = 0; n < kKeys / 8; ++n)
#pragma unroll
              for (int e = 0; e < 2; ++e)
                if (n * 8 + e > last || n * 8 + e <= below) s[n * 4 + half * 2 + e] = -INFINITY;
          }
        }
        float now[2];
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          float even = s[half * 2], odd = s[half * 2 + 1];
#pragma unroll
          for (int n = 1; n < kKeys / 8; ++n)
            even = fmaxf(even, s[n * 4 + half * 2]), odd = fmaxf(odd, s[n * 4 + half * 2 + 1]);
          now[half] = fmaxf(even, odd);
          now[half] = fmaxf(now[half], __shfl_xor_sync(0xFFFFFFFFu, now[half], 1));
          now[half] = fmaxf(now[half], __shfl_xor_sync(0xFFFFFFFFu, now[half], 2));
        }
        if constexpr (Tiles::kLateMaximum) {
          const bool behind = (now[0] - most[0]) * scale > 8.0f || (now[1] - most[1]) * scale > 8.0f;
          raised = __any_sync(0xFFFFFFFFu, behind);
        }
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const float before = most[half];
          if (raised) most[half] = fmaxf(before, now[half]);
          // If the row has had no key yet, uses a finite number: the difference of two -inf would be NaN.
          const float offset = most[half] == -INFINITY ? 0.0f : most[half] * scale;
          keep[half] = raised ? exp2_fast(fmaf(before, scale, -offset)) : 1.0f;
          float even = 0.0f, odd = 0.0f;
#pragma unroll
          for (int n = 0; n < kKeys / 8; ++n) {
            float& low = s[n * 4 + half * 2];
            float& high = s[n * 4 + half * 2 + 1];
            low = exp2_fast(fmaf(low, scale, -offset));
            high = exp2_fast(fmaf(high, scale, -offset));
            even += low;
            odd += high;
          }
          sum[half] = fmaf(sum[half], keep[half], even + odd);
        }
      };

      barrier_wait(key_full + 8 * key.stage, key.round);
      multiply_scores();
      wgmma_wait<0>();
      hold(s);
      arrive(key_free + 8 * key.stage);
      key.next();
      if (!Tiles::kOutInQueries && item.first_tile == item.last_tile) arrive(query_free);
      softmax(item.last_tile);
      pack_weights();
#pragma unroll
      for (int i = 0; i < kHead / 2; ++i) acc[i] = 0.0f;

#pragma unroll 1
      for (int tile = item.last_tile - 1; tile >= item.first_tile; --tile) {
        barrier_wait(key_full + 8 * key.stage, key.round);
        multiply_scores();
        barrier_wait(value_full + 8 * value.stage, value.round);
        multiply_values();
        wgmma_wait<1>();
        hold(s);
        arrive(key_free + 8 * key.stage);
        key.next();
        if (!Tiles::kOutInQueries && tile == item.first_tile) arrive(query_free);
        softmax(tile);
        hold(s);
        // Sums are never negative. A branch that depends on all weights prevents the assembler from moving the wait
        // ahead of the exponentials.
        if (Tiles::kLateMaximum && sum[0] + sum[1] < 0.0f) asm volatile("nanosleep.u32 1;");
        wgmma_wait<0>();
        hold(acc);
        hold(s);
        arrive(value_free + 8 * value.stage);
        value.next();
        if (raised) {
#pragma unroll
          for (int i = 0; i < kHead / 2; ++i) acc[i] *= keep[i / 2 % 2];
        }
        pack_weights();
      }

      barrier_wait(value_full + 8 * value.stage, value.round);
      multiply_values();
      float by[2];
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        float total = sum[half];
        total += __shfl_xor_sync(0xFFFFFFFFu, total, 1);
        total += __shfl_xor_sync(0xFFFFFFFFu, total, 2);
        by[half] = __fdividef(1.0f, total);
        const int t = row + half * 8;
        if (lane % 4 == 0 && t < d.seq_len)
          lse[d.stat_at(item.b, t, head)] = fmaf(most[half], score_scale<kCapped>(d), logf(total));
      }
      if constexpr (Tiles::kOutInQueries) {
        named_barrier_sync(1 + consumer, 128);  // the warpgroup has multiplied its queries
      } else {
        if (lane == 0) store_wait_read();  // waits for the previous item
        __syncwarp();
      }
      wgmma_wait<0>();
      hold(acc);
      arrive(value_free + 8 * value.stage);
      value.next();
#pragma unroll
      for (int k = 0; k < kHead / 16; ++k) {
        uint32_t block[4];  // 16 x 16
#pragma unroll
        for (int i = 0; i < 4; ++i)
          block[i] = pack_bf16(acc[k * 8 + i * 2] * by[i % 2], acc[k * 8 + i * 2 + 1] * by[i % 2]);
        store_matrix(out_at + k / 4 * Tiles::kOutBox + block_at(lane, k % 4), block);
      }
      fence_async_proxy();
      __syncwarp();
      if (lane == 0) {
#pragma unroll
        for (int box = 0; box < kBoxes; ++box)
          store_box(&out_map, out_at + box * Tiles::kOutBox, box * kBoxColumns, head, warp_row, item.b);
        store_commit();
        if constexpr (Tiles::kOutInQueries) {
          store_wait_read();
          barrier_arrive(query_free);
        }
      }
    }
    if (lane == 0) store_wait();
  }
}

// The most bytes of keys and values of concurrent pairs: about half of the L2.
constexpr int64_t kSectionBytes = 24 << 20;

}  // namespace
}  // namespace flash

using namespace flash;

bool built_for_hopper() { return true; }

void hopper_attention_forward(const AttentionForward& a, CudaStream& stream) {
  TRI_REQUIRE(a.qkv.dtype == Dtype::kBF16, "no flash attention kernel for {}", enum_name(a.qkv.dtype));
  const Shape d = shape_of(a);
  const FirstHead first = first_head_of(a);
  const int64_t batch = a.qkv[0] / d.seq_len, pairs = batch * d.kv_heads;
  with_head_size(d.row.head_size, [&](auto head_size) {
    constexpr int kHead = head_size();
    using Tiles = ForwardTiles<kHead>;
    static_assert(Tiles::kShared <= kHopperSharedBytes);
    const int64_t tiles = ceil_div(d.seq_len, Tiles::kQueries), items = pairs * d.group * tiles;
    const int64_t pair_bytes = int64_t{key_len_of(a)} * kHead * 2 * 2;
    constexpr TileSizes kSizes{Tiles::kQueries, Tiles::kKeys};
    constexpr size_t kTicketBytes = 16;
    char* memory = static_cast<char*>(workspace(stream, Scratch::kAttention, kTicketBytes + table_bytes(a, kSizes)));
    int* ticket = reinterpret_cast<int*>(memory);
    TRI_CUDA(cudaMemsetAsync(ticket, 0, sizeof(int), stream));
    const ForwardWork work{ticket, static_cast<int>(items), static_cast<int>(tiles), static_cast<int>(pairs),
                           static_cast<int>(std::clamp<int64_t>(kSectionBytes / pair_bytes, 1, pairs))};
    const ForwardBounds bounds = bounds_of(a, kSizes, memory + kTicketBytes, stream);
    const auto blocks = static_cast<unsigned>(std::min<int64_t>(items, own_multiprocessors(stream)));
    with_flags(a.softcap > 0, has_band(a), [&](auto capped, auto tables) {
      const auto kernel = hopper_forward_kernel<Tiles, decltype(capped)::value, decltype(tables)::value>;
      allow_shared(kernel, Tiles::kShared);
      kernel<<<blocks, Tiles::kThreads, Tiles::kShared, stream>>>(
          box_map(a.qkv.data, batch, d.seq_len, d.row.width / kHead, kHead, Tiles::kQueries, first.query / kHead),
          box_map(keys_of(a).data, batch, bounds.band.key_len, bounds.keys.width / kHead, kHead, Tiles::kKeys),
          box_map(a.out.data, batch, d.seq_len, d.row_heads, kHead, 16, first.out / kHead),
          pointer<float>(a.lse) + first.stat, work, d, bounds);
    });
  });
  TRI_CUDA_LAUNCH("hopper_attention_forward");
}

}  // namespace tri::cuda
