// The forward pass of the project's attention: kernels/cuda/flash_attention.cuh. A block of four warps owns 128 queries
// of a head, 32 per warp (tiles of 256 columns: eight warps, 16 per warp, as many as the registers hold), and processes
// the band's key tiles from the diagonal down. Scores stay in the accumulators,
// where they are the A operand of the next GEMM. While a tile is processed, the keys and values of the next arrive by
// cp.async.
#include "kernels/cuda/flash_attention.cuh"
#include "kernels/cuda/workspace.h"

namespace tri::cuda {
namespace flash {
namespace {

template <int kHead>
struct ForwardTiles {
  static constexpr int kQueries = 128;
  static constexpr int kRowTiles = kHead == 256 ? 1 : 2;  // of 16 queries, per warp
  static constexpr int kThreads = kQueries / (16 * kRowTiles) * 32;
  static constexpr int kBlocks = kHead == 256 ? 1 : 2;  // per multiprocessor
  static constexpr int kKeys = kHead == 64 ? 128 : 64;  // as many as the registers hold
  static constexpr uint32_t kQueryBytes = kQueries * kHead * 2, kKeyBytes = kKeys * kHead * 2;
  static constexpr uint32_t kSums = kQueryBytes + 4 * kKeyBytes;  // keys and values, two tiles each
  static constexpr int kShared = kSums + kThreads * 16;
};

template <int kHead, bool kCapped, bool kTables>
__global__ void __launch_bounds__(ForwardTiles<kHead>::kThreads, ForwardTiles<kHead>::kBlocks)
    forward_kernel(Bf16* out, float* lse, const Bf16* qkv, Shape d, const Bf16* kv_rows, ForwardBounds bounds) {
  using Tiles = ForwardTiles<kHead>;
  using Tile = SharedTile<kHead>;
  constexpr int kQueries = Tiles::kQueries, kKeys = Tiles::kKeys, kThreads = Tiles::kThreads,
                kRowTiles = Tiles::kRowTiles;
  constexpr int kScoreTiles = kKeys / 8, kHeadTiles = kHead / 8;
  extern __shared__ __align__(1024) unsigned char shared[];
  const uint32_t queries = shared_address(shared), keys = queries + Tiles::kQueryBytes,
                 values = keys + 2 * Tiles::kKeyBytes;
  const int lane = threadIdx.x % 32, warp_row = static_cast<int>(threadIdx.x) / 32 * 16 * kRowTiles;
  const int head = blockIdx.x, b = blockIdx.z, kv = head / d.group;
  QueryTile own{};
  if constexpr (kTables) own = bounds.query_tiles[int64_t{b} * gridDim.y + blockIdx.y];
  const int first_query =
      (kTables ? own.tile : static_cast<int>(gridDim.y - 1 - blockIdx.y)) * kQueries;  // most keys first
  const int valid = min(kQueries, d.seq_len - first_query);
  const int last_tile = kTables ? own.last : (first_query + valid - 1) / kKeys,
            first_tile = kTables ? own.first : d.first_key(first_query) / kKeys;
  const int stride = d.row.width;
  const QkvRow& key_row = kTables ? bounds.keys : d.row;
  const Bf16* key_rows = kTables ? kv_rows + bounds.key_at(b, 0, key_row.key(kv)) : qkv + d.qkv_at(b, 0, d.row.key(kv));

  const auto copy_keys = [&](int tile) {
    copy_tile<kKeys, kHead, kThreads, 2>(keys + (tile & 1) * Tiles::kKeyBytes, key_rows, key_row.width, tile * kKeys,
                                         kTables ? bounds.band.key_len : d.seq_len, d.row.head_size,
                                         2 * Tiles::kKeyBytes, key_row.value_at - key_row.key_at);
    copy_async_commit();
  };
  copy_tile<kQueries, kHead, kThreads>(queries, qkv + d.qkv_at(b, 0, d.row.query(kv, head % d.group)), stride,
                                       first_query, d.seq_len, d.row.head_size);
  copy_keys(last_tile);

  const uint32_t q_at = queries + Tile::at(warp_row + rows_first_row(lane), rows_first_chunk(lane));
  const uint32_t k_at = keys + Tile::at(columns_first_row(lane), columns_first_chunk(lane));
  const uint32_t v_at = values + Tile::at(rows_first_row(lane), rows_first_chunk(lane));
  const float scale = score_scale<kCapped>(d) * kLog2E;  // for exponentials to base 2
  float acc[kRowTiles][kHeadTiles][4], most[kRowTiles][2];
  float4* const sums = reinterpret_cast<float4*>(shared + Tiles::kSums) + threadIdx.x;  // no registers are left
  *sums = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
  clear(acc);
#pragma unroll
  for (int m = 0; m < kRowTiles; ++m)
#pragma unroll
    for (int half = 0; half < 2; ++half) most[m][half] = -INFINITY;

#pragma unroll 1
  for (int tile = last_tile; tile >= first_tile; --tile) {
    copy_async_wait<0>();
    __syncthreads();  // this tile has arrived, and no thread still uses the previous one
    if (tile > first_tile) copy_keys(tile - 1);
    const uint32_t stage = (tile & 1) * Tiles::kKeyBytes;

    float s[kRowTiles][kScoreTiles][4];
    clear(s);
    multiply<kHead / 16, kRowTiles, kKeys / 16>(
        s, [&](uint32_t(&to)[4], int k, int m) { load_matrix(to, Tile::step(q_at, 2 * k) + m * 16 * Tile::kRow); },
        [&](uint32_t(&to)[4], int k, int p) {
          load_matrix(to, Tile::step(k_at + stage, 2 * k) + p * 16 * Tile::kRow);
        });

    if constexpr (kCapped)
#pragma unroll
      for (int m = 0; m < kRowTiles; ++m)
#pragma unroll
        for (int n = 0; n < kScoreTiles; ++n) cap_scores(s[m][n], d);
    const int first_key = tile * kKeys;
    if constexpr (kTables) {
      const int position = bounds.band.position(first_query);
      if (first_key + kKeys - 1 > position || first_key < bounds.band.first_key(b, position + kQueries - 1))
        mask(s, position + warp_row, first_key, lane, -INFINITY, bounds.band, b);
    } else if (first_key + kKeys - 1 > first_query || first_key <= d.below(first_query + kQueries - 1)) {
      mask(s, first_query + warp_row, first_key, lane, -INFINITY, d);
    }

    const float4 earlier = *sums;
    float sum[2][2] = {{earlier.x, earlier.y}, {earlier.z, earlier.w}};  // over this lane's keys
#pragma unroll
    for (int m = 0; m < kRowTiles; ++m)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const float before = most[m][half];
        float now = before;
#pragma unroll
        for (int n = 0; n < kScoreTiles; ++n) now = fmaxf(now, fmaxf(s[m][n][2 * half], s[m][n][2 * half + 1]));
        now = fmaxf(now, __shfl_xor_sync(0xFFFFFFFFu, now, 1));
        now = fmaxf(now, __shfl_xor_sync(0xFFFFFFFFu, now, 2));
        most[m][half] = now;
        // If the row has had no key yet, uses a finite number: the difference of two -inf would be NaN.
        const float offset = now == -INFINITY ? 0.0f : now * scale;
        const float keep = exp2_fast(fmaf(before, scale, -offset));
        float total = sum[m][half] * keep;
#pragma unroll
        for (int n = 0; n < kScoreTiles; ++n)
#pragma unroll
          for (int e = 2 * half; e < 2 * half + 2; ++e) {
            s[m][n][e] = exp2_fast(fmaf(s[m][n][e], scale, -offset));
            total += s[m][n][e];
          }
        sum[m][half] = total;
#pragma unroll
        for (int n = 0; n < kHeadTiles; ++n) acc[m][n][2 * half] *= keep, acc[m][n][2 * half + 1] *= keep;
      }
    *sums = make_float4(sum[0][0], sum[0][1], sum[1][0], sum[1][1]);

    multiply<kKeys / 16, kRowTiles, kHead / 16>(
        acc,
        [&](uint32_t(&to)[4], int k, int m) {
          to[0] = pack_bf16(s[m][2 * k][0], s[m][2 * k][1]);
          to[1] = pack_bf16(s[m][2 * k][2], s[m][2 * k][3]);
          to[2] = pack_bf16(s[m][2 * k + 1][0], s[m][2 * k + 1][1]);
          to[3] = pack_bf16(s[m][2 * k + 1][2], s[m][2 * k + 1][3]);
        },
        [&](uint32_t(&to)[4], int k, int p) {
          load_matrix_transposed(to, Tile::step(v_at + stage, 2 * p) + k * 16 * Tile::kRow);
        });
  }

  // Stages the output in the warp's own query rows, which no other warp reads, for stores of 16 bytes.
  const uint32_t o_at = queries + Tile::at(warp_row + lane / 4, 0) + lane % 4 * 4;
  const float4 all = *sums;
  const float sum[2][2] = {{all.x, all.y}, {all.z, all.w}};
  __syncwarp();  // all lanes have finished with the queries
#pragma unroll
  for (int m = 0; m < kRowTiles; ++m)
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float total = sum[m][half];
      total += __shfl_xor_sync(0xFFFFFFFFu, total, 1);
      total += __shfl_xor_sync(0xFFFFFFFFu, total, 2);
      const float by = __fdividef(1.0f, total);
      const int row = warp_row + m * 16 + half * 8 + lane / 4;
      if (lane % 4 == 0 && row < valid)
        lse[d.stat_at(b, first_query + row, head)] = fmaf(most[m][half], score_scale<kCapped>(d), logf(total));
#pragma unroll
      for (int n = 0; n < kHeadTiles; ++n)
        store_shared(Tile::step(o_at, n) + (m * 16 + half * 8) * Tile::kRow,
                     pack_bf16(acc[m][n][2 * half] * by, acc[m][n][2 * half + 1] * by));
    }
  __syncwarp();
#pragma unroll
  for (int n = 0; n < Tile::kChunks; ++n) {
    const int row = warp_row + (lane + n * 32) / Tile::kChunks, chunk = (lane + n * 32) % Tile::kChunks;
    const uint4 item = load_shared16(queries + Tile::at(row, chunk));
    if (row < valid && chunk * 8 < d.row.head_size)
      *reinterpret_cast<uint4*>(out + d.out_at(b, first_query + row, head, d.row.head_size) + chunk * 8) = item;
  }
}

}  // namespace
}  // namespace flash

using namespace flash;

void mma_attention_forward(const AttentionForward& a, CudaStream& stream) {
  TRI_REQUIRE(a.qkv.dtype == Dtype::kBF16, "no flash attention kernel for {}", enum_name(a.qkv.dtype));
  const Shape d = shape_of(a);
  const FirstHead first = first_head_of(a);
  with_head_size(d.row.head_size, [&](auto head_size) {
    constexpr int kHead = head_size();
    using Tiles = ForwardTiles<kHead>;
    static_assert(Tiles::kShared <= flash_shared_bytes(kHead));
    const dim3 grid(static_cast<unsigned>(d.kv_heads * d.group),
                    static_cast<unsigned>(ceil_div(d.seq_len, Tiles::kQueries)),
                    static_cast<unsigned>(a.qkv[0] / d.seq_len));
    constexpr TileSizes kSizes{Tiles::kQueries, Tiles::kKeys};
    const size_t bytes = table_bytes(a, kSizes);
    const ForwardBounds bounds =
        bounds_of(a, kSizes, bytes > 0 ? workspace(stream, Scratch::kAttention, bytes) : nullptr, stream);
    with_flags(a.softcap > 0, has_band(a), [&](auto capped, auto tables) {
      const auto kernel = forward_kernel<kHead, decltype(capped)::value, decltype(tables)::value>;
      allow_shared(kernel, Tiles::kShared);
      kernel<<<grid, Tiles::kThreads, Tiles::kShared, stream>>>(
          pointer<Bf16>(a.out) + first.out, pointer<float>(a.lse) + first.stat, pointer<Bf16>(a.qkv) + first.query, d,
          pointer<Bf16>(keys_of(a)), bounds);
    });
  });
  TRI_CUDA_LAUNCH("flash_attention_forward");
}

}  // namespace tri::cuda
