// The forward pass of our attention on Hopper: kernels/cuda/flash_attention.cuh.
#include "kernels/cuda/driver.h"
#include "kernels/cuda/flash_attention.cuh"
#include "kernels/cuda/hopper.cuh"
#include "kernels/cuda/workspace.h"

namespace tri::cuda {
namespace flash {
namespace {

using namespace hopper;

template <int kHeadSize, int kConsumers_, bool kTurns_, bool kLazy_, bool kStatic_ = false>
struct HopperForward {
  static constexpr int kHead = kHeadSize, kConsumers = kConsumers_;  // warpgroups that multiply
  static constexpr bool kTurns = kTurns_, kLazy = kLazy_, kStatic = kStatic_;
  static constexpr int kThreads = 128 * (kConsumers + 1);
  static constexpr int kQueries = 64 * kConsumers, kKeys = 128, kStages = 2;
  static constexpr int kBoxes = (kHead + 63) / 64;
  static constexpr uint32_t kQueryBox = kQueries * kBoxRow, kKeyBox = kKeys * kBoxRow, kOutBox = 16 * kBoxRow;
  static constexpr uint32_t kQueryBytes = kBoxes * kQueryBox, kKeyBytes = kBoxes * kKeyBox;
  // Queries, what the warps store, keys, values, barriers.
  static constexpr uint32_t kOutAt = kQueryBytes, kKeysAt = kOutAt + kQueryBytes,
                            kValuesAt = kKeysAt + kStages * kKeyBytes, kBarriersAt = kValuesAt + kStages * kKeyBytes;
  static constexpr int kBarriers = 2 + 4 * kStages;
  static constexpr int kShared = kBarriersAt + 8 * kBarriers + 8;  // and the item
  static constexpr int kConsumerRegisters = kConsumers == 2 ? 232 : 160, kProducerRegisters = kConsumers == 2 ? 40 : 32;
};

// What there is to do.
struct ForwardWork {
  int* ticket;
  int items;
  int tiles;           // of queries, a head
  int pairs;           // of sequence and key/value head: B · NKV
  int pairs_together;
};

struct Item {
  int tile, b, kv, g;
};

__device__ __forceinline__ Item item_of(int item, const ForwardWork& work, const Shape& d) {
  const int section_items = work.pairs_together * d.group * work.tiles;
  const int section = item / section_items, rest = item - section * section_items;
  const int first_pair = section * work.pairs_together;
  const int heads = min(work.pairs_together, work.pairs - first_pair) * d.group;
  const int tile = work.tiles - 1 - rest / heads, head = rest % heads;
  const int pair = first_pair + head / d.group;
  return {tile, pair / d.kv_heads, pair % d.kv_heads, head % d.group};
}

template <class Tiles>
__global__ void __launch_bounds__(Tiles::kThreads, 1)
    hopper_forward_kernel(const __grid_constant__ CUtensorMap query_map, const __grid_constant__ CUtensorMap key_map,
                          const __grid_constant__ CUtensorMap out_map, float* lse, ForwardWork work, Shape d) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  constexpr int kHead = Tiles::kHead, kQueries = Tiles::kQueries, kKeys = Tiles::kKeys, kBoxes = Tiles::kBoxes,
                kStages = Tiles::kStages, kConsumers = Tiles::kConsumers;
  extern __shared__ __align__(1024) unsigned char shared[];
  const uint32_t base = shared_address(shared);
  const uint32_t barriers = base + Tiles::kBarriersAt;
  const uint32_t query_full = barriers, query_free = barriers + 8, key_full = barriers + 16,
                 key_free = key_full + 8 * kStages, value_full = key_free + 8 * kStages,
                 value_free = value_full + 8 * kStages;
  volatile int* const next_item = reinterpret_cast<volatile int*>(shared + Tiles::kBarriersAt + 8 * Tiles::kBarriers);
  const int warpgroup = static_cast<int>(threadIdx.x) / 128;
  if (threadIdx.x == 0) {
    barrier_init(query_full, 1);
    barrier_init(query_free, 4 * kConsumers);
    for (int stage = 0; stage < kStages; ++stage) {
      barrier_init(key_full + 8 * stage, 1);
      barrier_init(key_free + 8 * stage, 4 * kConsumers);
      barrier_init(value_full + 8 * stage, 1);
      barrier_init(value_free + 8 * stage, 4 * kConsumers);
    }
    barrier_init_done();
  }
  __syncthreads();
  const int key_tiles_in_query_tile = 1;
  (void)key_tiles_in_query_tile;

  if (warpgroup == 0) {
    registers_lower<Tiles::kProducerRegisters>();
    if (threadIdx.x != 0) return;
    prefetch_map(&query_map);
    prefetch_map(&key_map);
    prefetch_map(&out_map);
    RingPlace<kStages> key, value;
    uint32_t query_round = 0;
    const int heads_a_group = d.row.head_size;
    const auto load = [&](RingPlace<kStages>& at, uint32_t full, uint32_t free, uint32_t tiles, int head, int tile,
                          int b) {
      barrier_wait(free + 8 * at.stage, at.round ^ 1);
      barrier_expect(full + 8 * at.stage, Tiles::kKeyBytes);
#pragma unroll
      for (int box = 0; box < kBoxes; ++box)
        load_box(tiles + at.stage * Tiles::kKeyBytes + box * Tiles::kKeyBox, &key_map, full + 8 * at.stage, box * 64,
                 head, tile * kKeys, b);
      at.next();
    };
    int next = Tiles::kStatic ? static_cast<int>(blockIdx.x) : atomicAdd(work.ticket, 1);
    for (;;) {
      const int index = next;
      barrier_wait(query_free, query_round ^ 1);
      query_round ^= 1;
      if (index >= work.items) {
        *next_item = -1;
        barrier_arrive(query_full);
        break;
      }
      next = Tiles::kStatic ? index + static_cast<int>(gridDim.x) : atomicAdd(work.ticket, 1);
      const Item item = item_of(index, work, d);
      const int first_query = item.tile * kQueries;
      const int last = min(first_query + kQueries, d.seq_len) - 1;
      const int last_tile = last / kKeys, first_tile = d.first_key(first_query) / kKeys;
      *next_item = index;
      barrier_expect(query_full, Tiles::kQueryBytes);
#pragma unroll
      for (int box = 0; box < kBoxes; ++box)
        load_box(base + box * Tiles::kQueryBox, &query_map, query_full, box * 64,
                 d.row.query(item.kv, item.g) / heads_a_group, first_query, item.b);
      const int key_head = d.row.key(item.kv) / heads_a_group, value_head = d.row.value(item.kv) / heads_a_group;
      load(key, key_full, key_free, base + Tiles::kKeysAt, key_head, last_tile, item.b);
      for (int tile = last_tile - 1; tile >= first_tile; --tile) {
        load(key, key_full, key_free, base + Tiles::kKeysAt, key_head, tile, item.b);
        load(value, value_full, value_free, base + Tiles::kValuesAt, value_head, tile + 1, item.b);
      }
      load(value, value_full, value_free, base + Tiles::kValuesAt, value_head, first_tile, item.b);
    }
  } else {
    registers_raise<Tiles::kConsumerRegisters>();
    const int consumer = warpgroup - 1, lane = static_cast<int>(threadIdx.x) % 32,
              warp = static_cast<int>(threadIdx.x) / 32 % 4;
    const int own_turn = 1 + consumer, next_turn = 1 + (consumer + 1 == kConsumers ? 0 : consumer + 1);
    if (Tiles::kTurns && consumer == kConsumers - 1) named_barrier_arrive(next_turn, 256);
    const float scale = d.scale * kLog2E;  // exponentials are powers of two
    const uint64_t queries = operand(base + consumer * 64 * kBoxRow), keys = operand(base + Tiles::kKeysAt),
                   values = operand(base + Tiles::kValuesAt, Tiles::kKeyBox);
    const uint32_t out_at = base + Tiles::kOutAt + (consumer * 4 + warp) * kBoxes * Tiles::kOutBox;
    const uint32_t out_row = out_at + (lane & 15) * kBoxRow;
    RingPlace<kStages> key, value;
    uint32_t query_round = 0;

    float s[kKeys / 2], acc[kHead / 2];
    uint32_t p[kKeys / 16][4];
    const auto multiply_scores = [&](uint32_t stage) {
      wgmma_fence();
#pragma unroll
      for (int k = 0; k < kHead / 16; ++k)
        wgmma<0, 0>(s, ahead(queries, k / 4 * Tiles::kQueryBox + k % 4 * 32),
                    ahead(keys, stage * Tiles::kKeyBytes + k / 4 * Tiles::kKeyBox + k % 4 * 32), k > 0);
      wgmma_commit();
    };
    const auto multiply_values = [&](uint32_t stage) {
      wgmma_fence();
#pragma unroll
      for (int k = 0; k < kKeys / 16; ++k)
        wgmma<1>(acc, p[k], ahead(values, stage * Tiles::kKeyBytes + k * 16 * kBoxRow));
      wgmma_commit();
    };
    const auto pack_weights = [&] {
#pragma unroll
      for (int k = 0; k < kKeys / 16; ++k)
#pragma unroll
        for (int i = 0; i < 4; ++i) p[k][i] = pack_bf16(s[k * 8 + i * 2], s[k * 8 + i * 2 + 1]);
    };
    const auto free_stage = [&](uint32_t barrier) {
      if (lane == 0) barrier_arrive(barrier);
    };

    for (;;) {
      barrier_wait(query_full, query_round);
      query_round ^= 1;
      const int index = *next_item;
      if (index < 0) break;
      const Item item = item_of(index, work, d);
      const int first_query = item.tile * kQueries;
      const int last = min(first_query + kQueries, d.seq_len) - 1;
      const int last_tile = last / kKeys, first_tile = d.first_key(first_query) / kKeys;
      const int row = first_query + consumer * 64 + warp * 16 + lane / 4;  // and 8 further

      float most[2] = {-INFINITY, -INFINITY}, sum[2] = {0.0f, 0.0f}, keep[2];
      bool rescale = true;
      const auto softmax = [&](int tile) {
        const int first_key = tile * kKeys;
        if (first_key + kKeys - 1 > first_query + consumer * 64 ||
            first_key <= d.below(first_query + consumer * 64 + 63)) {
#pragma unroll
          for (int half = 0; half < 2; ++half) {
            const int most_key = row + half * 8 - first_key - lane % 4 * 2;
            const int below = d.window == 0 ? -1 : most_key - d.window;
#pragma unroll
            for (int n = 0; n < kKeys / 8; ++n)
#pragma unroll
              for (int e = 0; e < 2; ++e)
                if (n * 8 + e > most_key || (n * 8 + e <= below && d.window != 0)) s[n * 4 + half * 2 + e] = -INFINITY;
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
        float offset[2];
        if constexpr (Tiles::kLazy) {
          const bool far = (now[0] - most[0]) * scale > 8.0f || (now[1] - most[1]) * scale > 8.0f;
          rescale = __any_sync(0xFFFFFFFFu, far);
        }
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const float before = most[half];
          if (rescale) most[half] = fmaxf(before, now[half]);
          offset[half] = most[half] == -INFINITY ? 0.0f : most[half] * scale;
          keep[half] = rescale ? exp2_fast(fmaf(before, scale, -offset[half])) : 1.0f;
          float even = 0.0f, odd = 0.0f;
#pragma unroll
          for (int n = 0; n < kKeys / 8; ++n) {
            float& low = s[n * 4 + half * 2];
            float& high = s[n * 4 + half * 2 + 1];
            low = exp2_fast(fmaf(low, scale, -offset[half]));
            high = exp2_fast(fmaf(high, scale, -offset[half]));
            even += low;
            odd += high;
          }
          sum[half] = fmaf(sum[half], keep[half], even + odd);
        }
      };

      barrier_wait(key_full + 8 * key.stage, key.round);
      multiply_scores(key.stage);
      wgmma_wait<0>();
      hold(s);
      free_stage(key_free + 8 * key.stage);
      key.next();
      if (first_tile == last_tile) free_stage(query_free);
      softmax(last_tile);
      pack_weights();
#pragma unroll
      for (int i = 0; i < kHead / 2; ++i) acc[i] = 0.0f;

#pragma unroll 1
      for (int tile = last_tile - 1; tile >= first_tile; --tile) {
        barrier_wait(key_full + 8 * key.stage, key.round);
        if (Tiles::kTurns) named_barrier_sync(own_turn, 256);
        hold(s);
        multiply_scores(key.stage);
        barrier_wait(value_full + 8 * value.stage, value.round);
        hold(acc);
        multiply_values(value.stage);
        if (Tiles::kTurns) named_barrier_arrive(next_turn, 256);
        wgmma_wait<1>();
        hold(s);
        free_stage(key_free + 8 * key.stage);
        key.next();
        if (tile == first_tile) free_stage(query_free);
        softmax(tile);
        hold(s);
        wgmma_wait<0>();
        hold(acc);
        hold(s);
        free_stage(value_free + 8 * value.stage);
        value.next();
        if (!Tiles::kLazy || rescale) {
#pragma unroll
          for (int n = 0; n < kHead / 8; ++n)
#pragma unroll
            for (int e = 0; e < 4; ++e) acc[n * 4 + e] *= keep[e / 2];
        }
        pack_weights();
      }

      barrier_wait(value_full + 8 * value.stage, value.round);
      hold(acc);
      multiply_values(value.stage);
      float by[2];
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        float total = sum[half];
        total += __shfl_xor_sync(0xFFFFFFFFu, total, 1);
        total += __shfl_xor_sync(0xFFFFFFFFu, total, 2);
        by[half] = __fdividef(1.0f, total);
        const int t = row + half * 8;
        if (lane % 4 == 0 && t < d.seq_len)
          lse[d.stat_at(item.b, t, item.kv * d.group + item.g)] = fmaf(most[half], d.scale, logf(total));
      }
      store_wait_read();  // lane 0's stores of the item before
      __syncwarp();
      wgmma_wait<0>();
      hold(acc);
      free_stage(value_free + 8 * value.stage);
      value.next();
#pragma unroll
      for (int k = 0; k < kHead / 16; ++k) {
        const uint32_t chunk = static_cast<uint32_t>(k % 4 * 2 + (lane >> 4));
        store_matrix(out_row + k / 4 * Tiles::kOutBox + ((chunk ^ (lane & 7)) << 4),
                     pack_bf16(acc[k * 8] * by[0], acc[k * 8 + 1] * by[0]),
                     pack_bf16(acc[k * 8 + 2] * by[1], acc[k * 8 + 3] * by[1]),
                     pack_bf16(acc[k * 8 + 4] * by[0], acc[k * 8 + 5] * by[0]),
                     pack_bf16(acc[k * 8 + 6] * by[1], acc[k * 8 + 7] * by[1]));
      }
      fence_async_proxy();
      __syncwarp();
      if (lane == 0) {
#pragma unroll
        for (int box = 0; box < kBoxes; ++box)
          store_box(&out_map, out_at + box * Tiles::kOutBox, box * 64, item.kv * d.group + item.g,
                    first_query + consumer * 64 + warp * 16, item.b);
        store_commit();
      }
    }
    if (lane == 0) asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
  }
#endif
}


// Of (B, T, heads, HS) bf16 the boxes of `rows` tokens and 64 of a head's columns. What a box has beyond T or HS is
// read as zeros and not written.
CUtensorMap box_map(const void* data, int64_t batch, int seq_len, int64_t heads, int head_size, int rows) {
  static const auto encode = driver_function<PFN_cuTensorMapEncodeTiled_v12000>("cuTensorMapEncodeTiled");
  const auto wide = [](int64_t value) { return static_cast<cuuint64_t>(value); };
  const cuuint64_t shape[4] = {wide(head_size), wide(heads), wide(seq_len), wide(batch)};
  const cuuint64_t strides[3] = {wide(head_size * 2), wide(heads * head_size * 2), wide(seq_len * heads * head_size * 2)};
  const cuuint32_t box[4] = {kBoxColumns, 1, static_cast<cuuint32_t>(rows), 1}, steps[4] = {1, 1, 1, 1};
  CUtensorMap map;
  driver_check(encode(&map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 4, const_cast<void*>(data), shape, strides, box, steps,
                      CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
                      CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE),
               "cuTensorMapEncodeTiled");
  return map;
}

template <class Tiles>
void launch_hopper_forward(const AttentionForward& a, CudaStream& stream, int section_bytes) {
  const Shape d = shape_of(a);
  const int64_t batch = a.qkv[0] / d.seq_len, heads = int64_t{d.kv_heads} * d.group, pairs = batch * d.kv_heads,
                tiles = ceil_div(d.seq_len, Tiles::kQueries), items = batch * heads * tiles;
  const auto qkv = [&](int rows) {
    return box_map(a.qkv.data, batch, d.seq_len, heads + 2 * d.kv_heads, Tiles::kHead, rows);
  };
  const int64_t pair_bytes = int64_t{d.seq_len} * Tiles::kHead * 4;
  const int64_t together = std::clamp<int64_t>(section_bytes / pair_bytes, 1, pairs);
  int* ticket = static_cast<int*>(workspace(stream, Scratch::kAttention, sizeof(int)));
  if (!Tiles::kStatic) TRI_CUDA(cudaMemsetAsync(ticket, 0, sizeof(int), stream));
  const ForwardWork work{ticket, static_cast<int>(items), static_cast<int>(tiles), static_cast<int>(pairs),
                         static_cast<int>(together)};
  const auto kernel = hopper_forward_kernel<Tiles>;
  allow_shared(kernel, Tiles::kShared);
  const unsigned blocks = static_cast<unsigned>(std::min<int64_t>(items, num_multiprocessors(stream)));
  kernel<<<blocks, Tiles::kThreads, Tiles::kShared, stream>>>(qkv(Tiles::kQueries), qkv(Tiles::kKeys),
                                                              box_map(a.out.data, batch, d.seq_len, heads, Tiles::kHead, 16),
                                                              pointer<float>(a.lse), work, d);
  TRI_CUDA_LAUNCH("hopper_attention_forward");
}

}  // namespace
}  // namespace flash
}  // namespace tri::cuda
