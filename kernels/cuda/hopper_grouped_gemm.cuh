// Grouped GEMM on Hopper: one product per expert, with row offsets in device memory. Formulas: kernels/grouped_gemm.h.
//
// Mapping: a cluster of two blocks computes tiles of 256 x N, each block 128 x N, each of its two multiplying
// warpgroups 64 x N; N is 256, or 128 with sums in fp32 of FP8. Clusters run for the whole launch. A ticket counter
// assigns tiles, because other kernels may keep some clusters from starting. The tiles of an expert are neighbours, so
// that its weights are read from device memory once. A thread of a third warpgroup loads boxes of 128 bytes of K into a
// ring of stages; the blocks of a cluster share the N columns: each loads half of them for both. With the first stage
// of a tile the loading thread publishes which tile it is.
//
// Forward and input gradient compute the transposed product: M is the width of the output, which is the same for all
// experts, and N are the expert's rows, of which there may be any number: wgmma takes N in steps of 32. An expert's
// rows are divided into equal tiles. Boxes that reach beyond the expert's last row contain rows of the next expert,
// whose results are not written. A tile is written while the next one is multiplied. In the weight gradient K are the
// expert's rows: those beyond the last are replaced by zeros in shared memory. The copy engine adds to an old gradient.
//
// FP8: wgmma takes operands with K innermost only. The input gradient is a forward product with transposed weights; the
// weight gradient reads transposed rows (M, P) and (N, P), in which an expert's rows are columns. Boxes begin at
// multiples of 16 bytes, so the first box of an expert may begin in the columns of the one before, which are replaced
// by zeros too. Tensor cores add with about 14 bits. kFp32 adds their sums over 256 of K in fp32 registers.
//
// Limits: widths of whole 16-byte vectors, up to 512 experts. Sums in the order of K.
// Bound: tensor cores; with few rows per expert the weights' bytes. Reference: kernels/cpu/grouped_gemm.cpp.
#pragma once

#include <algorithm>

#include "kernels/core/dims.h"
#include "kernels/cuda/driver.h"
#include "kernels/cuda/grouped_gemm.h"
#include "kernels/cuda/hopper.cuh"
#include "kernels/cuda/workspace.h"

namespace tri::cuda {
namespace grouped {
namespace {

using namespace hopper;

constexpr int kCluster = 2, kConsumers = 2, kThreads = 128 * (kConsumers + 1);
constexpr int kM = 64 * kConsumers;
constexpr int kRowStep = 32;      // of N
constexpr int kGradientRows = 8;  // of a box of the weight gradient
constexpr int kTilesAbreast = 8;  // tiles of the inner dim that are computed before the next of the outer dim
constexpr int kMaxExperts = 512;
constexpr int kAlignment = 16;  // bytes, of the beginning of a box
constexpr uint32_t kBox = 64 * kBoxRow, kBytesOfM = kM / 64 * kBox;
constexpr int kTickets = 8;  // more than tiles can be loaded ahead of the slower block of a cluster
constexpr int kConsumerRegisters = 224, kProducerRegisters = 56;

// The types of the operands of M and N. bf16: 1 if K is not innermost.
template <int kTransM, int kTransN>
struct Bf16 {};
template <class M, class N>
struct Fp8 {};

template <class Operands>
struct OperandTraits;
template <int kM_, int kN_>
struct OperandTraits<Bf16<kM_, kN_>> {
  static constexpr bool kFp8 = false;
  static constexpr int kTransM = kM_, kTransN = kN_;
};
template <class M, class N>
struct OperandTraits<Fp8<M, N>> {
  static constexpr bool kFp8 = true;
  static constexpr int kTransM = 0, kTransN = 0;
};

enum class Sums { kTensorCores, kFp32 };

// A kind of product. kRows: N are an expert's rows, otherwise K are.
template <bool kRows_, class Operands_, Sums kSums_ = Sums::kTensorCores>
struct Kind : OperandTraits<Operands_> {
  using Operands = Operands_;
  static constexpr bool kRows = kRows_, kExact = kSums_ == Sums::kFp32;
  static constexpr int kK = static_cast<int>(kBoxRow) / (Kind::kFp8 ? 1 : 2);
  static constexpr int kN = kExact ? 128 : 256, kStages = kExact ? 6 : 4;
  static constexpr int kPieces = kN / 64;  // of 64 rows of the output, in which a tile is written
  static constexpr uint32_t kBytesOfN = kN / 64 * kBox, kStageBytes = kBytesOfM + kBytesOfN;
  // Layout: stages; output buffers of each warpgroup; barriers of stages and tickets; tiles; tickets; offsets.
  static constexpr uint32_t kOutAt = kStages * kStageBytes, kOutBytes = 2 * kBox,
                            kBarriersAt = kOutAt + kConsumers * kOutBytes, kTicketsFullAt = kBarriersAt + 16 * kStages,
                            kTilesAt = kTicketsFullAt + 8 * kTickets, kTicketsAt = kTilesAt + 16 * kStages,
                            kOffsetsAt = kTicketsAt + 4 * kTickets, kShared = kOffsetsAt + 4 * (kMaxExperts + 1);
  static_assert(kShared <= 227 * 1024);
};

template <int kTransM, int kTransN, int kSize>
__device__ __forceinline__ void multiply_set(Bf16<kTransM, kTransN>, float (&d)[kSize], uint64_t m, uint64_t n) {
  wgmma_set<kTransM, kTransN>(d, m, n);
}
template <int kTransM, int kTransN, int kSize>
__device__ __forceinline__ void multiply_add(Bf16<kTransM, kTransN>, float (&d)[kSize], uint64_t m, uint64_t n) {
  wgmma<kTransM, kTransN>(d, m, n);
}
template <class M, class N, int kSize>
__device__ __forceinline__ void multiply_set(Fp8<M, N>, float (&d)[kSize], uint64_t m, uint64_t n) {
  wgmma_fp8_set(M{}, N{}, d, m, n);
}
template <class M, class N, int kSize>
__device__ __forceinline__ void multiply_add(Fp8<M, N>, float (&d)[kSize], uint64_t m, uint64_t n) {
  wgmma_fp8(M{}, N{}, d, m, n);
}

struct Work {
  int* ticket;         // tiles assigned in addition to each cluster's first
  const int* offsets;  // (experts + 1)
  int experts;
  int m, n, k;                         // extents of a product; n: weight gradient, k: the others
  bool add;                            // weight gradient
  const float *inverse_m, *inverse_n;  // FP8: factors of the operands
};

// What the multiplying warps know of a tile.
struct alignas(16) Tile {
  int expert;  // -1: no more tiles
  int first_m;
  int first_n;  // a row, or a column of the weight gradient
  int count;    // rows of the tile; of the weight gradient: of the expert, and those skipped before it
};

__device__ __forceinline__ int tiles_of(int extent, int tile) { return (extent + tile - 1) / tile; }

// Returns the columns before an expert's first that the first box of a weight gradient contains.
template <class K>
__device__ __forceinline__ int skipped(int first_row) {
  return K::kFp8 && !K::kRows ? first_row % kAlignment : 0;
}

// Returns the number of tiles of a cluster for an expert with `rows` rows.
template <class K>
__device__ __forceinline__ int tiles_of_expert(const Work& work, int rows) {
  const int along_m = tiles_of(work.m, kCluster * kM);
  if constexpr (K::kRows) return along_m * tiles_of(rows, K::kN);
  return rows == 0 && work.add ? 0 : along_m * tiles_of(work.n, K::kN);
}

// Returns tile `index` of the expert's, for the block `rank` of the cluster.
template <class K>
__device__ __forceinline__ Tile tile_of(const Work& work, int expert, int first_row, int rows, int index, int rank) {
  const int along_m = tiles_of(work.m, kCluster * kM);
  const int along_n = K::kRows ? tiles_of(rows, K::kN) : tiles_of(work.n, K::kN);
  const int inner = K::kRows ? along_n : along_m, outer = K::kRows ? along_m : along_n;
  const int section = index / (kTilesAbreast * outer), rest = index - section * kTilesAbreast * outer;
  const int abreast = min(kTilesAbreast, inner - section * kTilesAbreast);
  const int at_outer = rest / abreast, at_inner = section * kTilesAbreast + rest - at_outer * abreast;
  if constexpr (K::kRows) {
    const int step = tiles_of(tiles_of(rows, along_n), kRowStep) * kRowStep, before = at_inner * step;
    return {expert, (at_outer * kCluster + rank) * kM, first_row + before, min(step, rows - before)};
  }
  return {expert, (at_inner * kCluster + rank) * kM, at_outer * K::kN, rows == 0 ? 0 : rows + skipped<K>(first_row)};
}

__device__ __forceinline__ int load_int(uint32_t from) {
  int value;
  asm volatile("ld.shared.s32 %0, [%1];" : "=r"(value) : "r"(from) : "memory");
  return value;
}
__device__ __forceinline__ void store_tile(uint32_t to, const Tile& tile) {
  asm volatile("st.shared.v4.s32 [%0], {%1, %2, %3, %4};" ::"r"(to), "r"(tile.expert), "r"(tile.first_m),
               "r"(tile.first_n), "r"(tile.count)
               : "memory");
}

// "full": the boxes have arrived. "free": the multiplying warps of both blocks have finished.
template <class K>
__device__ __forceinline__ void init_barriers(uint32_t base) {
  const uint32_t full = base + K::kBarriersAt, free = full + 8 * K::kStages;
  for (int stage = 0; stage < K::kStages; ++stage) {
    barrier_init(full + 8 * stage, 1);
    barrier_init(free + 8 * stage, 4 * kConsumers * kCluster);
  }
  for (int ticket = 0; ticket < kTickets; ++ticket) barrier_init(base + K::kTicketsFullAt + 8 * ticket, 1);
  barrier_init_done();
}

// The block 0 sends the number of the next tile to the block 1, which waits for it.
template <class K>
__device__ __forceinline__ void send_ticket(uint32_t base, const RingPlace<kTickets>& ticket, int next) {
  store_at(1, base + K::kTicketsAt + 4 * ticket.stage, next, base + K::kTicketsFullAt + 8 * ticket.stage);
}
template <class K>
__device__ __forceinline__ int receive_ticket(uint32_t base, const RingPlace<kTickets>& ticket) {
  barrier_expect(base + K::kTicketsFullAt + 8 * ticket.stage, 4);
  barrier_wait(base + K::kTicketsFullAt + 8 * ticket.stage, ticket.round);
  return load_int(base + K::kTicketsAt + 4 * ticket.stage);
}

// Loads the boxes of M of a stage, from `k` on.
template <class K>
__device__ __forceinline__ void load_m(uint32_t to, const CUtensorMap& map, uint32_t barrier, int k, int first_m,
                                       int expert) {
  if constexpr (K::kTransM == 0) {
    load_box(to, &map, barrier, k, first_m, expert);
  } else {
#pragma unroll
    for (int box = 0; box < kM / 64; ++box) load_box(to + box * kBox, &map, barrier, first_m + box * 64, k, expert);
  }
}

// The loading thread.
template <class K>
__device__ __forceinline__ void load_tiles(const CUtensorMap& m_map, const CUtensorMap& n_map, const Work& work,
                                           uint32_t base) {
  const uint32_t full = base + K::kBarriersAt, free = full + 8 * K::kStages;
  const int rank = static_cast<int>(cluster_rank());
  prefetch_map(&m_map);
  prefetch_map(&n_map);
  RingPlace<K::kStages> at;
  int expert = 0, before = 0;  // tiles of earlier experts
  RingPlace<kTickets> ticket;  // the next tile, which the block 0 sends to the block 1
  for (int index = static_cast<int>(blockIdx.x) / kCluster;; ticket.next()) {
    int first_row = 0, rows = 0;
    for (; expert < work.experts; ++expert) {
      first_row = load_int(base + K::kOffsetsAt + 4 * expert);
      rows = load_int(base + K::kOffsetsAt + 4 * expert + 4) - first_row;
      const int tiles_here = tiles_of_expert<K>(work, rows);
      if (index < before + tiles_here) break;
      before += tiles_here;
    }
    barrier_wait(free + 8 * at.stage, at.round ^ 1);
    if (expert == work.experts) {
      store_tile(base + K::kTilesAt + 16 * at.stage, {-1, 0, 0, 0});
      barrier_arrive(full + 8 * at.stage);
      return;
    }
    const Tile tile = tile_of<K>(work, expert, first_row, rows, index - before, rank);
    store_tile(base + K::kTilesAt + 16 * at.stage, tile);
    // Without rows the only stage is all zeros.
    const int steps = K::kRows ? tiles_of(work.k, K::kK) : max(tiles_of(tile.count, K::kK), 1);
    first_row -= skipped<K>(first_row);
    int next = 0;
    if (rank == 0) next = static_cast<int>(gridDim.x) / kCluster + atomicAdd(work.ticket, 1);  // takes long
    const int boxes = K::kRows ? tiles_of(tile.count, 64) : K::kN / 64;
#pragma unroll 1
    for (int step = 0; step < steps; ++step) {
      if (step > 0) barrier_wait(free + 8 * at.stage, at.round ^ 1);
      const uint32_t barrier = full + 8 * at.stage, of_m = base + at.stage * K::kStageBytes, of_n = of_m + kBytesOfM;
      barrier_expect(barrier, kBytesOfM + static_cast<uint32_t>(boxes) * kBox);
      const int k = step * K::kK;
      load_m<K>(of_m, m_map, barrier, K::kRows ? k : first_row + k, tile.first_m, K::kRows ? expert : 0);
      if constexpr (K::kRows) {
        for (int box = 0; box < boxes; ++box)  // half of each
          load_box_to(3, of_n + box * kBox + rank * (kBox / 2), &n_map, barrier, k, tile.first_n + box * 64 + rank * 32,
                      0);
      } else {
#pragma unroll
        for (int pair = 0; pair < K::kN / 64; pair += 2) {
          const int column = tile.first_n + (pair + rank) * 64;
          load_box_to(3, of_n + (pair + rank) * kBox, &n_map, barrier, K::kTransN ? column : first_row + k,
                      K::kTransN ? first_row + k : column, 0);
        }
      }
      at.next();
      if (rank == 0 && step == min(2, steps - 1)) send_ticket<K>(base, ticket, next);
    }
    index = rank == 0 ? next : receive_ticket<K>(base, ticket);
  }
}

// One of the multiplying warpgroups.
template <class K>
struct Consumer {
  const CUtensorMap& out_map;
  const Work& work;
  __nv_bfloat16* out;
  unsigned char* shared;
  uint32_t base;
  int group, warp, lane;
  float scale;  // FP8
  RingPlace<K::kStages> at{};
  // Of products of rows: the last tile, rounded, until it is written; the output buffer for its next piece, 0 or kBox.
  uint32_t rounded[K::kN / 4] = {};
  Tile old{};
  uint32_t buffer = 0;

  __device__ __forceinline__ void release(uint32_t stage) {
    if (lane < kCluster)
      barrier_arrive_at(base + K::kBarriersAt + 8 * (K::kStages + stage), static_cast<uint32_t>(lane));
  }
  __device__ __forceinline__ void wait_full() { barrier_wait(base + K::kBarriersAt + 8 * at.stage, at.round); }
  __device__ __forceinline__ float scaled(float sum) const { return K::kFp8 ? sum * scale : sum; }
  __device__ __forceinline__ void sync_group() { named_barrier_sync(1 + group, 128); }

  // Replaces all but [skip, count) of the K of a stage by zeros: of this warpgroup's 64 of M and of all of N, which the
  // other warpgroup replaces too. skip < kAlignment, and 0 for bf16.
  __device__ __forceinline__ void zero_rest(uint32_t stage, int skip, int count) {
    unsigned char* const from = shared + stage * K::kStageBytes;
    const int thread = warp * 32 + lane;
    if constexpr (K::kFp8) {
#pragma unroll 1
      for (int row = thread; row < 64 + K::kN; row += 128) {
        unsigned char* const box = from + (row < 64 ? group : kM / 64 + row / 64 - 1) * kBox + row % 64 * kBoxRow;
        const auto words_of = [&](int chunk) { return reinterpret_cast<uint32_t*>(box + (chunk ^ row % 8) * 16); };
        const auto first_bytes = [](int bytes) { return bytes >= 4 ? ~0u : bytes <= 0 ? 0u : (1u << 8 * bytes) - 1; };
        for (int chunk = 0; chunk * 16 < skip; ++chunk)
#pragma unroll
          for (int word = 0; word < 4; ++word) words_of(chunk)[word] &= ~first_bytes(skip - chunk * 16 - word * 4);
        for (int chunk = count / 16; chunk < static_cast<int>(kBoxRow) / 16; ++chunk)
#pragma unroll
          for (int word = 0; word < 4; ++word) words_of(chunk)[word] &= first_bytes(count - chunk * 16 - word * 4);
      }
    } else {
#pragma unroll 1
      for (int box = 0; box <= K::kN / 64; ++box) {
        unsigned char* const to = from + (box == 0 ? group : kM / 64 + box - 1) * kBox;
        for (int at = count * static_cast<int>(kBoxRow) + thread * 16; at < static_cast<int>(kBox); at += 2048)
          *reinterpret_cast<uint4*>(to + at) = uint4{0, 0, 0, 0};
      }
    }
    fence_async_proxy();
    sync_group();
  }

  // Starts the products of the next stage; `left` is the extent of K from here on, of which the first `skip` count as
  // zeros.
  template <bool kFirst, int kColumns>
  __device__ __forceinline__ void multiply_stage(float (&acc)[kColumns / 2], int left, int skip = 0) {
    constexpr typename K::Operands kOperands;
    constexpr uint32_t kStepM = K::kTransM ? 16 * kBoxRow : 32, kStepN = K::kTransN ? 16 * kBoxRow : 32;
    wait_full();
    const uint64_t m = operand(base + at.stage * K::kStageBytes + group * kBox),
                   n = operand(base + at.stage * K::kStageBytes + kBytesOfM, kBox);
    if (!K::kRows && (left < K::kK || skip > 0)) zero_rest(at.stage, skip, left);
    if constexpr (!kFirst) hold(acc);
    wgmma_fence();
    if constexpr (kFirst)
      multiply_set(kOperands, acc, m, n);
    else
      multiply_add(kOperands, acc, m, n);
#pragma unroll
    for (int k = 1; k < 4; ++k) multiply_add(kOperands, acc, ahead(m, k * kStepM), ahead(n, k * kStepN));
    wgmma_commit();
  }

  // acc (64 x columns) = the sum over K, `extent` long, of the stages of the tile. Meanwhile writes what is left of the
  // tile before, a piece with each stage.
  template <int kColumns>
  __device__ __forceinline__ void multiply(float (&acc)[kColumns / 2], int extent, int skip = 0) {
    if constexpr (K::kExact)
      return multiply_exactly<kColumns>(acc, extent, skip);
    else
      multiply_stage<true, kColumns>(acc, extent, skip);
    if constexpr (K::kRows) write_piece<0>();
    uint32_t previous = at.stage;
    at.next();
    int step = 1;
#pragma unroll 1
    for (int left = extent - K::kK; left > 0; left -= K::kK, ++step) {
      multiply_stage<false, kColumns>(acc, left);
      wgmma_wait<1>();
      release(previous);
      previous = at.stage;
      at.next();
      if constexpr (K::kRows) write_piece(step);
    }
    wgmma_wait<0>();
    hold(acc);
    release(previous);
    if constexpr (K::kRows)
      for (; step < K::kPieces; ++step) write_piece(step);  // K is short
  }

  // The same; adds the sums of two stages in fp32. Meanwhile the other warpgroup multiplies.
  template <int kColumns>
  __device__ __forceinline__ void multiply_exactly(float (&sum)[kColumns / 2], int extent, int skip) {
#pragma unroll
    for (int i = 0; i < kColumns / 2; ++i) sum[i] = 0.0f;
    int step = 0, left = extent;
#pragma unroll 1
    do {
      float acc[kColumns / 2];
      multiply_stage<true, kColumns>(acc, left, step == 0 ? skip : 0);
      const uint32_t first = at.stage;
      at.next();
      const bool two = left > K::kK;
      const uint32_t second = at.stage;
      if (two) {
        multiply_stage<false, kColumns>(acc, left - K::kK);
        at.next();
      }
      if constexpr (K::kRows) write_piece(step);
      wgmma_wait<0>();
      hold(acc);
      release(first);
      if (two) release(second);
#pragma unroll
      for (int i = 0; i < kColumns / 2; ++i) sum[i] += acc[i];
      left -= 2 * K::kK;
      ++step;
    } while (left > 0);
    if constexpr (K::kRows)
      for (; step < K::kPieces; ++step) write_piece(step);  // K is short
  }

  // Rounds the sums, which a later tile or the end writes as rows of the output.
  template <int kColumns>
  __device__ __forceinline__ void keep_rows(const float (&acc)[kColumns / 2], const Tile& tile) {
#pragma unroll
    for (int i = 0; i < kColumns / 4; ++i) rounded[i] = pack_bf16(scaled(acc[i * 2]), scaled(acc[i * 2 + 1]));
    old = tile;
  }
  // Writes piece kPiece, 64 rows of 64 columns, of the kept tile: its transposed sums.
  template <int kPiece>
  __device__ __forceinline__ void write_piece() {
    const int left = old.count - kPiece * 64;
    if (left <= 0) return;
    const int first_m = old.first_m + group * 64, first_row = old.first_n + kPiece * 64, thread = warp * 32 + lane;
    const uint32_t to = base + K::kOutAt + group * K::kOutBytes + buffer;
    // Lanes give the addresses of rows of 8 x 8 matrices: rows 0-7 and 8-15, 8 of M each.
    const int lane_row = lane / 16 * 8 + lane % 8;
    const uint32_t lane_at =
        static_cast<uint32_t>(lane_row) * kBoxRow + (static_cast<uint32_t>(warp * 2 + lane / 8 % 2) ^ (lane % 8)) * 16;
#pragma unroll
    for (int block = 0; block < 4; ++block) {
      const int i = kPiece * 16 + block * 4;
      const uint32_t matrices[4] = {rounded[i], rounded[i + 1], rounded[i + 2], rounded[i + 3]};
      store_matrix_transposed(to + lane_at + block * 16 * kBoxRow, matrices);
    }
    fence_async_proxy();
    if (thread == 0) store_wait_read();  // the other buffer may be written from now on
    sync_group();
    if (left >= 64) {
      if (thread == 0) {
        store_box(&out_map, to, first_m, first_row, 0);
        store_commit();
      }
    } else {
      const int chunk = thread % 8;
      for (int row = thread / 8; row < left && first_m + chunk * 8 < work.m; row += 16)
        *reinterpret_cast<uint4*>(out + int64_t{first_row + row} * work.m + first_m + chunk * 8) =
            load_shared16(to + static_cast<uint32_t>(row) * kBoxRow + (static_cast<uint32_t>(chunk ^ (row % 8)) << 4));
    }
    buffer ^= kBox;
  }
  __device__ __forceinline__ void write_piece(int piece) {
    if (piece == 0) write_piece<0>();
    if (piece == 1) write_piece<1>();
    if constexpr (K::kPieces > 2) {
      static_assert(K::kPieces == 4);
      if (piece == 2) write_piece<2>();
      if (piece == 3) write_piece<3>();
    }
  }

  // Writes or adds the sums as they are. A warp has four buffers of 8 rows of 32 columns, which it fills all together.
  __device__ __forceinline__ void store_gradient(const float (&acc)[K::kN / 2], const Tile& tile) {
    constexpr int kColumns = kBoxRow / sizeof(float);
    constexpr uint32_t kBuffer = kGradientRows * kBoxRow;
    constexpr int kBuffers = static_cast<int>(K::kOutBytes / 4 / kBuffer);
    const int g = lane / 4, t = lane % 4;
    const uint32_t buffers = base + K::kOutAt + group * K::kOutBytes + warp * kBuffers * kBuffer;
    const uint32_t lane_at = buffers + static_cast<uint32_t>(g) * kBoxRow + t % 2 * 8;
#pragma unroll
    for (int half = 0; half < 2; ++half)  // of the warp's 16 rows
#pragma unroll
      for (int first = 0; first < K::kN / kColumns; first += kBuffers) {
        store_wait_read();  // of this lane
        __syncwarp();
#pragma unroll
        for (int n = 0; n < kBuffers * kColumns / 8; ++n) {
          const uint32_t to = lane_at + n / 4 * kBuffer + (static_cast<uint32_t>((n % 4 * 2 + t / 2) ^ g) << 4);
          const int i = (first * kColumns / 8 + n) * 4 + half * 2;
          asm volatile("st.shared.v2.f32 [%0], {%1, %2};" ::"r"(to), "f"(scaled(acc[i])), "f"(scaled(acc[i + 1]))
                       : "memory");
        }
        fence_async_proxy();
        __syncwarp();
        const int first_m = tile.first_m + group * 64 + warp * 16 + half * 8,
                  first_n = tile.first_n + (first + lane) * kColumns;
        if (lane < kBuffers && first_m < work.m && first_n < work.n) {
          if (work.add)
            add_box(&out_map, buffers + lane * kBuffer, first_n, first_m, tile.expert);
          else
            store_box(&out_map, buffers + lane * kBuffer, first_n, first_m, tile.expert);
        }
        store_commit();
      }
  }

  template <int kColumns>
  __device__ __forceinline__ void tile_of_rows(const Tile& tile) {
    float acc[kColumns / 2];
    multiply<kColumns>(acc, work.k);
    keep_rows<kColumns>(acc, tile);
  }

  // Multiplies the tile with the least multiple of kRowStep columns, kSteps or more, that holds its rows.
  template <int kSteps>
  __device__ __forceinline__ void tile_of_steps(const Tile& tile) {
    constexpr int kColumns = kSteps * kRowStep;
    if constexpr (kColumns < K::kN)
      if (tile.count > kColumns) return tile_of_steps<kSteps + 1>(tile);
    tile_of_rows<kColumns>(tile);
  }

  __device__ __forceinline__ void run() {
    const Tile* const tiles = reinterpret_cast<const Tile*>(shared + K::kTilesAt);
    for (;;) {
      wait_full();
      const Tile tile = tiles[at.stage];
      if (tile.expert < 0) break;
      if constexpr (K::kRows) {
        tile_of_steps<1>(tile);
      } else {
        float acc[K::kN / 2];
        const int first_row = K::kFp8 ? load_int(base + K::kOffsetsAt + 4 * tile.expert) : 0;
        multiply<K::kN>(acc, tile.count, skipped<K>(first_row));
        store_gradient(acc, tile);
      }
    }
    if constexpr (K::kRows)
      for (int piece = 0; piece < K::kPieces; ++piece) write_piece(piece);
    store_wait();
  }
};

template <class K>
__global__ void __cluster_dims__(kCluster, 1, 1) __launch_bounds__(kThreads, 1)
    grouped_gemm_kernel(const __grid_constant__ CUtensorMap m_map, const __grid_constant__ CUtensorMap n_map,
                        const __grid_constant__ CUtensorMap out_map, __nv_bfloat16* out, const Work work) {
  extern __shared__ __align__(1024) unsigned char shared[];
  const uint32_t base = shared_address(shared);
  if (threadIdx.x == 0) init_barriers<K>(base);
  int* const offsets = reinterpret_cast<int*>(shared + K::kOffsetsAt);
  for (int e = static_cast<int>(threadIdx.x); e <= work.experts; e += kThreads) offsets[e] = work.offsets[e];
  __syncthreads();
  cluster_sync();

  const int warpgroup = static_cast<int>(threadIdx.x) / 128;
  if (warpgroup == 0) {
    lower_registers<kProducerRegisters>();
    if (threadIdx.x == 0) load_tiles<K>(m_map, n_map, work, base);
  } else {
    raise_registers<kConsumerRegisters>();
    Consumer<K> consumer{out_map,
                         work,
                         out,
                         shared,
                         base,
                         warpgroup - 1,
                         static_cast<int>(threadIdx.x) / 32 % 4,
                         static_cast<int>(threadIdx.x) % 32,
                         K::kFp8 ? *work.inverse_m * *work.inverse_n : 1.0f};
    consumer.run();
  }
  cluster_sync();  // the other block may still write to this one's shared memory
}

// A map of a row-major (d2, d1, d0) tensor with boxes of b1 rows of 128 bytes.
CUtensorMap map_of(const Tensor& tensor, int64_t d2, int64_t d1, int64_t d0, int b1) {
  static const auto encode = driver_function<PFN_cuTensorMapEncodeTiled_v12000>("cuTensorMapEncodeTiled");
  const auto element = static_cast<cuuint64_t>(dtype_bytes(tensor.dtype));
  const auto wide = [](int64_t value) { return static_cast<cuuint64_t>(std::max<int64_t>(value, 1)); };
  const cuuint64_t shape[3] = {wide(d0), wide(d1), wide(d2)};
  const cuuint64_t strides[2] = {wide(d0) * element, wide(d0 * d1) * element};
  const cuuint32_t box[3] = {static_cast<cuuint32_t>(kBoxRow / element), static_cast<cuuint32_t>(b1), 1},
                   steps[3] = {1, 1, 1};
  const auto type = tensor.dtype == Dtype::kF32    ? CU_TENSOR_MAP_DATA_TYPE_FLOAT32
                    : tensor.dtype == Dtype::kBF16 ? CU_TENSOR_MAP_DATA_TYPE_BFLOAT16
                                                   : CU_TENSOR_MAP_DATA_TYPE_UINT8;
  CUtensorMap map;
  driver_check(
      encode(&map, type, 3, tensor.data, shape, strides, box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE,
             CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE),
      "cuTensorMapEncodeTiled");
  return map;
}

template <class K>
void launch(const CUtensorMap& m_map, const CUtensorMap& n_map, const CUtensorMap& out_map, const Tensor& out,
            const Work& work, CudaStream& stream) {
  const auto kernel = grouped_gemm_kernel<K>;
  TRI_CUDA(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, K::kShared));
  TRI_CUDA(cudaMemsetAsync(work.ticket, 0, sizeof(int), stream));
  const auto blocks = static_cast<unsigned>(num_multiprocessors(stream) / kCluster * kCluster);
  kernel<<<blocks, kThreads, K::kShared, stream>>>(m_map, n_map, out_map, static_cast<__nv_bfloat16*>(out.data), work);
  TRI_CUDA_LAUNCH("hopper_grouped_gemm");
}

// Returns the work of a product, without n, k and factors.
inline Work work_of(const GroupedProduct& p, CudaStream& stream) {
  return {.ticket = static_cast<int*>(workspace(stream, Scratch::kTickets, sizeof(int))),
          .offsets = static_cast<const int*>(p.offsets.data),
          .experts = p.experts(),
          .m = static_cast<int>(p.out[p.form == GroupedForm::kWeightGradient ? p.out.dims - 2 : 1]),
          .n = 0,
          .k = 0,
          .add = p.add,
          .inverse_m = nullptr,
          .inverse_n = nullptr};
}

}  // namespace
}  // namespace grouped
}  // namespace tri::cuda
