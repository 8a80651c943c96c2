// Shared by the project's attention kernels on tensor cores: those of mma.sync (Dao 2023, FlashAttention-2), which
// build on this file, and Hopper's (hopper_attention.cuh). Causal attention; formulas in kernels/attention.h.
//   qkv, dqkv (R, NKV · (G + 2) · HS) bf16, in either order (qkv_row.h)
//   out, dout (R, NH, HS) bf16    lse, delta (B, NH, T) f32
// Limits: bf16, HS 64, 96 or 128, in Hopper's forward pass also 256, for mma.sync any multiple of 8 up to 256, 16-byte
// aligned tensors, scale > 0; B, NH up to 65,535. Tiles have 64, 96, 128 or 256 columns (kHead); those beyond HS are
// zeros.
// Bound: tensor cores (mma.sync); shared-memory bandwidth is a close second. Reference: kernels/cpu/attention.cpp.
#pragma once

#include <climits>
#include <type_traits>

#include "kernels/core/dims.h"
#include "kernels/cuda/attention_tiles.cuh"
#include "kernels/cuda/check.h"
#include "kernels/cuda/device_math.cuh"
#include "kernels/cuda/dispatch.h"
#include "kernels/cuda/flash_attention.h"
#include "kernels/cuda/mma.cuh"

namespace tri::cuda::flash {

using Bf16 = __nv_bfloat16;

// Of the heads that a call computes; pointers are those of their first one (FirstHead).
struct Shape {
  int seq_len, kv_heads, group, window;  // window 0: none
  float scale, softcap;                  // softcap 0: none
  int row_heads;                         // of a row of out, and of a sample's statistics
  QkvRow row;

  __device__ int heads() const { return kv_heads * group; }
  __device__ int out_row(int head_size) const { return row_heads * head_size; }
  // Returns the element of a head that begins `head` elements into its row.
  __device__ int64_t qkv_at(int b, int t, int head) const { return (int64_t{b} * seq_len + t) * row.width + head; }
  __device__ int64_t out_at(int b, int t, int head, int head_size) const {
    return (int64_t{b} * seq_len + t) * out_row(head_size) + head * head_size;
  }
  __device__ int64_t stat_at(int b, int t, int head) const { return (int64_t{b} * row_heads + head) * seq_len + t; }
  __device__ int first_key(int t) const { return window == 0 || t < window ? 0 : t - window + 1; }
  __device__ int last_query(int s) const { return window == 0 || s + window > seq_len ? seq_len - 1 : s + window - 1; }
  // The keys of t are those in (below(t), t].
  __device__ int below(int t) const { return window == 0 ? INT_MIN : t - window; }
};

// Starts copying rows first.. of `from` to a tile in shared memory, with zeros from row `end` and column `head_size`
// on, which are not read. With kTiles 2 also those `from_apart` elements further, to a tile `apart` bytes further.
template <int kRows, int kColumns, int kThreads, int kTiles = 1>
__device__ __forceinline__ void copy_tile(uint32_t to, const Bf16* from, int stride, int first, int end, int head_size,
                                          uint32_t apart = 0, int from_apart = 0) {
  using Tile = SharedTile<kColumns>;
  constexpr int kChunks = Tile::kChunks, kCopies = kRows * kChunks / kThreads;
  static_assert(kRows * kChunks % kThreads == 0);
  constexpr int kPass = kThreads / kChunks;
  constexpr bool kWholeRows = kThreads % (8 * kChunks) == 0;  // then all of a thread's rows have the same permutation
  const unsigned thread = threadIdx.x;
  const int row = thread / kChunks, chunk = thread % kChunks;
#pragma unroll
  for (int n = 0; n < kCopies; ++n) {
    const int next_row = kWholeRows ? row + n * kPass : (thread + n * kThreads) / kChunks;
    const int next_chunk = kWholeRows ? chunk : (thread + n * kThreads) % kChunks;
    const uint32_t next_to =
        to + (kWholeRows ? Tile::at(row, chunk) + n * kPass * Tile::kRow : Tile::at(next_row, next_chunk));
    const char* next_from = row_address(from + next_chunk * 8, first + next_row, stride * 2);
    const bool valid = first + next_row < end && next_chunk * 8 < head_size;
    copy_async16(next_to, next_from, valid);
    if constexpr (kTiles == 2) copy_async16(next_to + apart, next_from + int64_t{from_apart} * 2, valid);
  }
}

// acc += A · B over kSteps steps of 16: load_a(fragment, step, m-tile), load_b(fragments of two n-tiles, step, pair).
template <int kSteps, int kRowTiles, int kPairs, class LoadA, class LoadB>
__device__ __forceinline__ void multiply(float (&acc)[kRowTiles][2 * kPairs][4], LoadA load_a, LoadB load_b) {
#pragma unroll
  for (int k = 0; k < kSteps; ++k) {
    uint32_t a[kRowTiles][4];
#pragma unroll
    for (int m = 0; m < kRowTiles; ++m) load_a(a[m], k, m);
#pragma unroll
    for (int p = 0; p < kPairs; ++p) {
      uint32_t b[4];
      load_b(b, k, p);
#pragma unroll
      for (int m = 0; m < kRowTiles; ++m) {
        mma(acc[m][2 * p], a[m], b[0], b[1]);
        mma(acc[m][2 * p + 1], a[m], b[2], b[3]);
      }
    }
  }
}

template <int kA, int kB>
__device__ __forceinline__ void clear(float (&acc)[kA][kB][4]) {
#pragma unroll
  for (int a = 0; a < kA; ++a)
#pragma unroll
    for (int b = 0; b < kB; ++b)
#pragma unroll
      for (int e = 0; e < 4; ++e) acc[a][b][e] = 0.0f;
}

// The scores of a tile, before the exponentials. With a softcap they are capped first, in place, which also scales
// them; without one the exponentials' argument absorbs the scale.
template <bool kCapped>
__device__ __forceinline__ float score_scale(const Shape& d) {
  return kCapped ? 1.0f : d.scale;
}
template <int kScores>
__device__ __forceinline__ void cap_scores(float (&scores)[kScores], const Shape& d) {
  const float exponent = d.scale * softcap_exponent(d.softcap);
#pragma unroll
  for (int i = 0; i < kScores; ++i) scores[i] = capped(scores[i], d.softcap, exponent);
}
// The derivative of a capped score with respect to the score before the softcap, from its weight p = 2^(score · log2(e)
// - lse) with `lse` in units of log2. Where the weight vanishes, so does the gradient.
__device__ __forceinline__ float cap_slope(float p, float lse, const Shape& d) {
  const float ratio = (log2_fast(p) + lse) * (1.0f / kLog2E / d.softcap);
  return p > 0.0f ? fmaf(-ratio, ratio, 1.0f) : 0.0f;
}

// Sets a tile's `acc` to `masked` where the key, a column, is outside the band of the query, a row. `row`, `column`: of
// the warp's first query and key; `lane`: within the warp.
template <int kRowTiles, int kColumnTiles>
__device__ __forceinline__ void mask(float (&acc)[kRowTiles][kColumnTiles][4], int row, int column, int lane,
                                     float masked, const Shape& d) {
#pragma unroll
  for (int m = 0; m < kRowTiles; ++m)
#pragma unroll
    for (int n = 0; n < kColumnTiles; ++n)
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const int query = row + m * 16 + e / 2 * 8 + lane / 4;
        const int key = column + n * 8 + lane % 4 * 2 + e % 2;
        if (key > query || key <= d.below(query)) acc[m][n][e] = masked;
      }
}

// The same where a band decides: `row` is the position of the warp's first query in sample b.
template <int kRowTiles, int kColumnTiles>
__device__ __forceinline__ void mask(float (&acc)[kRowTiles][kColumnTiles][4], int row, int column, int lane,
                                     float masked, const Band& band, int b) {
#pragma unroll
  for (int m = 0; m < kRowTiles; ++m)
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int query = row + m * 16 + half * 8 + lane / 4, first = band.first_key(b, query);
#pragma unroll
      for (int n = 0; n < kColumnTiles; ++n)
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          const int key = column + n * 8 + lane % 4 * 2 + e;
          if (key > query || key < first) acc[m][n][half * 2 + e] = masked;
        }
    }
}

// The number of lanes that read a head's row of dout or out, sixteen bytes each; of 16 lanes 12 have elements of a head
// of 96.
constexpr int row_lanes(int head_size) { return head_size == 64 ? 8 : head_size == 256 ? 32 : 16; }

// Returns sum_c dout · out of the row at this element; 0, without reading, if not `valid`. `lane`: within the row.
template <int kHead>
__device__ __forceinline__ float row_delta(const Bf16* dout, const Bf16* out, int64_t at, int lane, bool valid) {
  float sum = 0.0f;
  if (valid && lane < kHead / 8) {
    const Pack<Bf16> x = load_pack(dout + at + lane * 8), y = load_pack(out + at + lane * 8);
#pragma unroll
    for (int i = 0; i < 8; ++i) sum = fmaf(to_float(x.item[i]), to_float(y.item[i]), sum);
  }
#pragma unroll
  for (int offset = row_lanes(kHead) / 2; offset > 0; offset /= 2) sum += __shfl_xor_sync(0xFFFFFFFFu, sum, offset);
  return sum;
}

// The order of additions to a tile of dq: the number of key tiles that have been added.
__device__ __forceinline__ int load_relaxed(const int* from) {
  int value;
  asm volatile("ld.relaxed.gpu.global.s32 %0, [%1];" : "=r"(value) : "l"(from) : "memory");
  return value;
}
__device__ __forceinline__ int load_acquire(const int* from) {
  int value;
  asm volatile("ld.acquire.gpu.global.s32 %0, [%1];" : "=r"(value) : "l"(from) : "memory");
  return value;
}
__device__ __forceinline__ void store_release(int* to, int value) {
  asm volatile("st.release.gpu.global.s32 [%0], %1;" ::"l"(to), "r"(value) : "memory");
}

template <class Args>
Shape shape_of(const Args& a) {
  return {.seq_len = a.seq_len,
          .kv_heads = kv_heads_of(a),
          .group = a.group,
          .window = a.window >= a.seq_len ? 0 : a.window,
          .scale = a.scale,
          .softcap = a.softcap,
          .row_heads = a.num_kv_heads * a.group,
          .row = qkv_row_of(a)};
}

// Calls f(std::integral_constant<int, columns of a tile>): the head size, rounded up to 64, 96, 128 or 256, which is at
// most kMost.
template <int kMost = kFlashMaxHeadSize, class F>
void with_head_size(int head_size, F&& f) {
  TRI_REQUIRE(head_size % 8 == 0 && head_size <= kMost, "no flash attention kernel for head size {}", head_size);
  if constexpr (kMost > 128)
    if (head_size > 128) return f(std::integral_constant<int, kMost>{});
  if (head_size <= 64) return f(std::integral_constant<int, 64>{});
  if (head_size <= 96) return f(std::integral_constant<int, 96>{});
  f(std::integral_constant<int, 128>{});
}

template <class Kernel>
void allow_shared(Kernel kernel, int bytes) {
  TRI_CUDA(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes));
}

}  // namespace tri::cuda::flash
