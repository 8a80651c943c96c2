// Grouped GEMM on Hopper: one product per expert, with row offsets in device memory. Formulas: kernels/grouped_gemm.h.
//
// Mapping: a cluster of two blocks computes tiles of 256 x 256, each block 128 x 256, each of its two multiplying
// warpgroups 64 x 256. Clusters run for the whole launch. A ticket counter assigns tiles, because other kernels may
// keep some clusters from starting. The tiles of an expert are neighbours, so that its weights are read from device
// memory once. A thread of a third warpgroup loads boxes of 64 elements of K into a ring of four stages; the blocks of
// a cluster share the 256 columns: each loads half of them for both. With the first stage of a tile the loading thread
// publishes which tile it is.
//
// Forward and input gradient compute the transposed product: M is the width of the output, which is the same for all
// experts, and N are the expert's rows, of which there may be any number: wgmma takes N in steps of 32. An expert's
// rows are divided into equal tiles. Boxes that reach beyond the expert's last row contain rows of the next expert,
// whose results are not written. A tile is written while the next one is multiplied. In the weight gradient K are the
// expert's rows: those beyond the last are replaced by zeros in shared memory. The copy engine adds to an old gradient.
//
// Limits: bf16 operands, all widths multiples of 8, up to 512 experts. Sums in fp32, in the order of K.
// Bound: tensor cores; with few rows per expert the weights' bytes. Reference: kernels/cpu/grouped_gemm.cpp.
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
constexpr int kM = 64 * kConsumers, kN = 256, kK = 64, kStages = 4;
constexpr int kRowStep = 32;      // of N
constexpr int kGradientRows = 8;  // of a box of the weight gradient
constexpr int kPieces = kN / 64;  // of 64 rows of the output, in which a tile is written
constexpr int kTilesAbreast = 8;  // tiles of the inner dim that are computed before the next of the outer dim
constexpr int kMaxExperts = 512;
constexpr uint32_t kBox = 64 * kBoxRow;
constexpr uint32_t kBytesOfM = kM / 64 * kBox, kBytesOfN = kN / 64 * kBox, kStageBytes = kBytesOfM + kBytesOfN;
constexpr int kTickets = 8;  // more than tiles can be loaded ahead of the slower block of a cluster
// Layout: stages; output buffers of each warpgroup; barriers of stages and tickets; tiles; tickets; offsets.
constexpr uint32_t kOutAt = kStages * kStageBytes, kOutBytes = 2 * kBox, kBarriersAt = kOutAt + kConsumers * kOutBytes,
                   kTicketsFullAt = kBarriersAt + 16 * kStages, kTilesAt = kTicketsFullAt + 8 * kTickets,
                   kTicketsAt = kTilesAt + 16 * kStages, kOffsetsAt = kTicketsAt + 4 * kTickets;
constexpr uint32_t kShared = kOffsetsAt + 4 * (kMaxExperts + 1);
static_assert(kShared <= 227 * 1024);
constexpr int kConsumerRegisters = 224, kProducerRegisters = 56;

struct Work {
  int* ticket;         // tiles assigned in addition to each cluster's first
  const int* offsets;  // (experts + 1)
  int experts;
  int m, n, k;  // extents of a product; n: weight gradient, k: the others
  bool add;     // weight gradient
};

// What the multiplying warps know of a tile.
struct alignas(16) Tile {
  int expert;  // -1: no more tiles
  int first_m;
  int first_n;  // a row, or a column of the weight gradient
  int count;    // rows of the tile; of the weight gradient: of the expert
};

template <GroupedForm kForm>
constexpr bool kOfRows = kForm != GroupedForm::kWeightGradient;

__device__ __forceinline__ int tiles_of(int extent, int tile) { return (extent + tile - 1) / tile; }

// Returns the number of tiles of a cluster for an expert with `rows` rows.
template <GroupedForm kForm>
__device__ __forceinline__ int tiles_of_expert(const Work& work, int rows) {
  const int along_m = tiles_of(work.m, kCluster * kM);
  if constexpr (kOfRows<kForm>) return along_m * tiles_of(rows, kN);
  return rows == 0 && work.add ? 0 : along_m * tiles_of(work.n, kN);
}

// Returns tile `index` of the expert's, for the block `rank` of the cluster.
template <GroupedForm kForm>
__device__ __forceinline__ Tile tile_of(const Work& work, int expert, int first_row, int rows, int index, int rank) {
  const int along_m = tiles_of(work.m, kCluster * kM);
  const int along_n = kOfRows<kForm> ? tiles_of(rows, kN) : tiles_of(work.n, kN);
  const int inner = kOfRows<kForm> ? along_n : along_m, outer = kOfRows<kForm> ? along_m : along_n;
  const int section = index / (kTilesAbreast * outer), rest = index - section * kTilesAbreast * outer;
  const int abreast = min(kTilesAbreast, inner - section * kTilesAbreast);
  const int at_outer = rest / abreast, at_inner = section * kTilesAbreast + rest - at_outer * abreast;
  if constexpr (kOfRows<kForm>) {
    const int step = tiles_of(tiles_of(rows, along_n), kRowStep) * kRowStep, skipped = at_inner * step;
    return {expert, (at_outer * kCluster + rank) * kM, first_row + skipped, min(step, rows - skipped)};
  }
  return {expert, (at_inner * kCluster + rank) * kM, at_outer * kN, rows};
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

// The loading thread.
template <GroupedForm kForm>
__device__ __forceinline__ void load_tiles(const CUtensorMap& m_map, const CUtensorMap& n_map, const Work& work,
                                           uint32_t base) {
  const uint32_t full = base + kBarriersAt, free = full + 8 * kStages;
  const int rank = static_cast<int>(cluster_rank());
  prefetch_map(&m_map);
  prefetch_map(&n_map);
  RingPlace<kStages> at;
  int expert = 0, before = 0;  // tiles of earlier experts
  RingPlace<kTickets> ticket;  // the next tile, which the block 0 sends to the block 1
  for (int index = static_cast<int>(blockIdx.x) / kCluster;; ticket.next()) {
    int first_row = 0, rows = 0;
    for (; expert < work.experts; ++expert) {
      first_row = load_int(base + kOffsetsAt + 4 * expert);
      rows = load_int(base + kOffsetsAt + 4 * expert + 4) - first_row;
      const int tiles_here = tiles_of_expert<kForm>(work, rows);
      if (index < before + tiles_here) break;
      before += tiles_here;
    }
    barrier_wait(free + 8 * at.stage, at.round ^ 1);
    if (expert == work.experts) {
      store_tile(base + kTilesAt + 16 * at.stage, {-1, 0, 0, 0});
      barrier_arrive(full + 8 * at.stage);
      return;
    }
    const Tile tile = tile_of<kForm>(work, expert, first_row, rows, index - before, rank);
    store_tile(base + kTilesAt + 16 * at.stage, tile);
    // Without rows the only stage is all zeros.
    const int steps = kOfRows<kForm> ? tiles_of(work.k, kK) : max(tiles_of(rows, kK), 1);
    int next = 0;
    if (rank == 0) next = static_cast<int>(gridDim.x) / kCluster + atomicAdd(work.ticket, 1);  // takes long
    const int boxes = kOfRows<kForm> ? tiles_of(tile.count, 64) : kN / 64;
#pragma unroll 1
    for (int step = 0; step < steps; ++step) {
      if (step > 0) barrier_wait(free + 8 * at.stage, at.round ^ 1);
      const uint32_t barrier = full + 8 * at.stage, of_m = base + at.stage * kStageBytes, of_n = of_m + kBytesOfM;
      barrier_expect(barrier, kBytesOfM + static_cast<uint32_t>(boxes) * kBox);
      const int k = step * kK;
      if constexpr (kForm == GroupedForm::kForward) {
        load_box(of_m, &m_map, barrier, k, tile.first_m, expert);
      } else {
#pragma unroll
        for (int box = 0; box < kM / 64; ++box)
          load_box(of_m + box * kBox, &m_map, barrier, tile.first_m + box * 64, kOfRows<kForm> ? k : first_row + k,
                   kOfRows<kForm> ? expert : 0);
      }
      if constexpr (kOfRows<kForm>) {
        for (int box = 0; box < boxes; ++box)  // half of each
          load_box_to(3, of_n + box * kBox + rank * (kBox / 2), &n_map, barrier, k, tile.first_n + box * 64 + rank * 32,
                      0);
      } else {
#pragma unroll
        for (int pair = 0; pair < kN / 64; pair += 2)
          load_box_to(3, of_n + (pair + rank) * kBox, &n_map, barrier, tile.first_n + (pair + rank) * 64, first_row + k,
                      0);
      }
      at.next();
      if (rank == 0 && step == min(2, steps - 1))
        store_at(1, base + kTicketsAt + 4 * ticket.stage, next, base + kTicketsFullAt + 8 * ticket.stage);
    }
    if (rank != 0) {
      barrier_expect(base + kTicketsFullAt + 8 * ticket.stage, 4);
      barrier_wait(base + kTicketsFullAt + 8 * ticket.stage, ticket.round);
      next = load_int(base + kTicketsAt + 4 * ticket.stage);
    }
    index = next;
  }
}

// One of the multiplying warpgroups.
template <GroupedForm kForm>
struct Consumer {
  const CUtensorMap& out_map;
  const Work& work;
  __nv_bfloat16* out;
  unsigned char* shared;
  uint32_t base;
  int group, warp, lane;
  RingPlace<kStages> at{};
  // Of products of rows: the last tile, rounded, until it is written; the output buffer for its next piece, 0 or kBox.
  uint32_t rounded[kN / 4] = {};
  Tile old{};
  uint32_t buffer = 0;

  __device__ __forceinline__ void release(uint32_t stage) {
    if (lane < kCluster) barrier_arrive_at(base + kBarriersAt + 8 * (kStages + stage), static_cast<uint32_t>(lane));
  }
  __device__ __forceinline__ void wait_full() { barrier_wait(base + kBarriersAt + 8 * at.stage, at.round); }
  __device__ __forceinline__ void sync_group() { named_barrier_sync(1 + group, 128); }

  // Replaces the rows from `first` of the 64 of K of a stage by zeros: of this warpgroup's 64 of M and of all of N.
  __device__ __forceinline__ void zero_rows(uint32_t stage, int first) {
    unsigned char* const from = shared + stage * kStageBytes;
#pragma unroll 1
    for (int box = 0; box <= kN / 64; ++box) {
      unsigned char* const to = from + (box == 0 ? group : kM / 64 + box - 1) * kBox;
      for (int at = first * static_cast<int>(kBoxRow) + (warp * 32 + lane) * 16; at < static_cast<int>(kBox);
           at += 2048)
        *reinterpret_cast<uint4*>(to + at) = uint4{0, 0, 0, 0};
    }
    fence_async_proxy();
    sync_group();
  }

  // Starts the products of the next stage; `left` is the extent of K from here on.
  template <bool kFirst, int kColumns>
  __device__ __forceinline__ void multiply_stage(float (&acc)[kColumns / 2], int left) {
    constexpr int kTransM = kForm == GroupedForm::kForward ? 0 : 1, kTransN = kOfRows<kForm> ? 0 : 1;
    constexpr uint32_t kStepM = kTransM ? 16 * kBoxRow : 32, kStepN = kTransN ? 16 * kBoxRow : 32;  // of 16 of K
    wait_full();
    const uint64_t m = operand(base + at.stage * kStageBytes + group * kBox),
                   n = operand(base + at.stage * kStageBytes + kBytesOfM, kBox);
    if (!kOfRows<kForm> && left < kK) zero_rows(at.stage, left);
    if constexpr (!kFirst) hold(acc);
    wgmma_fence();
    if constexpr (kFirst)
      wgmma_set<kTransM, kTransN>(acc, m, n);
    else
      wgmma<kTransM, kTransN>(acc, m, n);
#pragma unroll
    for (int k = 1; k < kK / 16; ++k) wgmma<kTransM, kTransN>(acc, ahead(m, k * kStepM), ahead(n, k * kStepN));
    wgmma_commit();
  }

  // acc (64 x columns) = the sum over K, `extent` long, of the stages of the tile. Meanwhile writes what is left of the
  // tile before, a piece with each stage.
  template <int kColumns>
  __device__ __forceinline__ void multiply(float (&acc)[kColumns / 2], int extent) {
    multiply_stage<true, kColumns>(acc, extent);
    if constexpr (kOfRows<kForm>) write_piece<0>();
    uint32_t previous = at.stage;
    at.next();
    int step = 1;
#pragma unroll 1
    for (int left = extent - kK; left > 0; left -= kK, ++step) {
      multiply_stage<false, kColumns>(acc, left);
      wgmma_wait<1>();
      release(previous);
      previous = at.stage;
      at.next();
      if constexpr (kOfRows<kForm>) write_piece(step);
    }
    wgmma_wait<0>();
    hold(acc);
    release(previous);
    if constexpr (kOfRows<kForm>)
      for (; step < kPieces; ++step) write_piece(step);  // K is short
  }

  // Rounds the sums, which a later tile or the end writes as rows of the output.
  template <int kColumns>
  __device__ __forceinline__ void keep_rows(const float (&acc)[kColumns / 2], const Tile& tile) {
#pragma unroll
    for (int i = 0; i < kColumns / 4; ++i) rounded[i] = pack_bf16(acc[i * 2], acc[i * 2 + 1]);
    old = tile;
  }
  // Writes piece kPiece, 64 rows of 64 columns, of the kept tile: its transposed sums.
  template <int kPiece>
  __device__ __forceinline__ void write_piece() {
    const int left = old.count - kPiece * 64;
    if (left <= 0) return;
    const int first_m = old.first_m + group * 64, first_row = old.first_n + kPiece * 64, thread = warp * 32 + lane;
    const uint32_t to = base + kOutAt + group * kOutBytes + buffer;
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
    static_assert(kPieces == 4);
    if (piece == 0) write_piece<0>();
    if (piece == 1) write_piece<1>();
    if (piece == 2) write_piece<2>();
    if (piece == 3) write_piece<3>();
  }

  // Writes or adds the sums as they are. A warp has four buffers of 8 rows of 32 columns, which it fills all together.
  __device__ __forceinline__ void store_gradient(const float (&acc)[kN / 2], const Tile& tile) {
    constexpr int kColumns = kBoxRow / sizeof(float);
    constexpr uint32_t kBuffer = kGradientRows * kBoxRow;
    constexpr int kBuffers = static_cast<int>(kOutBytes / 4 / kBuffer);
    const int g = lane / 4, t = lane % 4;
    const uint32_t buffers = base + kOutAt + group * kOutBytes + warp * kBuffers * kBuffer;
    const uint32_t lane_at = buffers + static_cast<uint32_t>(g) * kBoxRow + t % 2 * 8;
#pragma unroll
    for (int half = 0; half < 2; ++half)  // of the warp's 16 rows
#pragma unroll
      for (int first = 0; first < kN / kColumns; first += kBuffers) {
        store_wait_read();  // of this lane
        __syncwarp();
#pragma unroll
        for (int n = 0; n < kBuffers * kColumns / 8; ++n) {
          const uint32_t to = lane_at + n / 4 * kBuffer + (static_cast<uint32_t>((n % 4 * 2 + t / 2) ^ g) << 4);
          const int i = (first * kColumns / 8 + n) * 4 + half * 2;
          asm volatile("st.shared.v2.f32 [%0], {%1, %2};" ::"r"(to), "f"(acc[i]), "f"(acc[i + 1]) : "memory");
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

  __device__ __forceinline__ void run() {
    const Tile* const tiles = reinterpret_cast<const Tile*>(shared + kTilesAt);
    for (;;) {
      wait_full();
      const Tile tile = tiles[at.stage];
      if (tile.expert < 0) break;
      if constexpr (kOfRows<kForm>) {
        switch (tiles_of(tile.count, kRowStep)) {
          case 1:
            tile_of_rows<32>(tile);
            break;
          case 2:
            tile_of_rows<64>(tile);
            break;
          case 3:
            tile_of_rows<96>(tile);
            break;
          case 4:
            tile_of_rows<128>(tile);
            break;
          case 5:
            tile_of_rows<160>(tile);
            break;
          case 6:
            tile_of_rows<192>(tile);
            break;
          case 7:
            tile_of_rows<224>(tile);
            break;
          default:
            tile_of_rows<256>(tile);
        }
      } else {
        float acc[kN / 2];
        multiply<kN>(acc, tile.count);
        store_gradient(acc, tile);
      }
    }
    if constexpr (kOfRows<kForm>)
      for (int piece = 0; piece < kPieces; ++piece) write_piece(piece);
    store_wait();
  }
};

template <GroupedForm kForm>
__global__ void __cluster_dims__(kCluster, 1, 1) __launch_bounds__(kThreads, 1)
    grouped_gemm_kernel(const __grid_constant__ CUtensorMap m_map, const __grid_constant__ CUtensorMap n_map,
                        const __grid_constant__ CUtensorMap out_map, __nv_bfloat16* out, const Work work) {
  extern __shared__ __align__(1024) unsigned char shared[];
  const uint32_t base = shared_address(shared), full = base + kBarriersAt, free = full + 8 * kStages;
  // "full": the boxes have arrived. "free": the multiplying warps of both blocks have finished.
  if (threadIdx.x == 0) {
    for (int stage = 0; stage < kStages; ++stage) {
      barrier_init(full + 8 * stage, 1);
      barrier_init(free + 8 * stage, 4 * kConsumers * kCluster);
    }
    for (int ticket = 0; ticket < kTickets; ++ticket) barrier_init(base + kTicketsFullAt + 8 * ticket, 1);
    barrier_init_done();
  }
  int* const offsets = reinterpret_cast<int*>(shared + kOffsetsAt);
  for (int e = static_cast<int>(threadIdx.x); e <= work.experts; e += kThreads) offsets[e] = work.offsets[e];
  __syncthreads();
  cluster_sync();

  const int warpgroup = static_cast<int>(threadIdx.x) / 128;
  if (warpgroup == 0) {
    lower_registers<kProducerRegisters>();
    if (threadIdx.x == 0) load_tiles<kForm>(m_map, n_map, work, base);
  } else {
    raise_registers<kConsumerRegisters>();
    Consumer<kForm> consumer{out_map,
                             work,
                             out,
                             shared,
                             base,
                             warpgroup - 1,
                             static_cast<int>(threadIdx.x) / 32 % 4,
                             static_cast<int>(threadIdx.x) % 32};
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
  const auto type = tensor.dtype == Dtype::kF32 ? CU_TENSOR_MAP_DATA_TYPE_FLOAT32 : CU_TENSOR_MAP_DATA_TYPE_BFLOAT16;
  CUtensorMap map;
  driver_check(
      encode(&map, type, 3, tensor.data, shape, strides, box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE,
             CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE),
      "cuTensorMapEncodeTiled");
  return map;
}

template <GroupedForm kForm>
void launch(const CUtensorMap& m_map, const CUtensorMap& n_map, const CUtensorMap& out_map, const Tensor& out,
            const Work& work, CudaStream& stream) {
  const auto kernel = grouped_gemm_kernel<kForm>;
  TRI_CUDA(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kShared));
  TRI_CUDA(cudaMemsetAsync(work.ticket, 0, sizeof(int), stream));
  const auto blocks = static_cast<unsigned>(num_multiprocessors(stream) / kCluster * kCluster);
  kernel<<<blocks, kThreads, kShared, stream>>>(m_map, n_map, out_map, static_cast<__nv_bfloat16*>(out.data), work);
  TRI_CUDA_LAUNCH("hopper_grouped_gemm");
}

}  // namespace
}  // namespace grouped

bool hopper_grouped_gemm_takes(const GroupedProduct& p) {
  int64_t bits = 0;
  for (const Tensor& tensor : {p.out, p.rows, p.other})
    bits |= static_cast<int64_t>(reinterpret_cast<uintptr_t>(tensor.data)) | tensor[tensor.dims - 1] * 2;
  return p.rows.dtype == Dtype::kBF16 && bits % 16 == 0 && p.experts() <= grouped::kMaxExperts;
}

void hopper_grouped_gemm(const GroupedProduct& p, CudaStream& stream) {
  using namespace grouped;
  const auto extent = [](int64_t value) { return static_cast<int>(value); };
  Work work{static_cast<int*>(workspace(stream, Scratch::kTickets, sizeof(int))),
            static_cast<const int*>(p.offsets.data),
            p.experts(),
            extent(p.out[p.out.dims - 2]),
            0,
            0,
            p.add};
  const int64_t E = work.experts, R = p.rows[0];
  if (p.form == GroupedForm::kWeightGradient) {
    work.n = extent(p.other[1]);
    return launch<GroupedForm::kWeightGradient>(map_of(p.rows, 1, R, work.m, 64), map_of(p.other, 1, R, work.n, 64),
                                                map_of(p.out, E, work.m, work.n, kGradientRows), p.out, work, stream);
  }
  work.m = extent(p.out[1]);
  work.k = extent(p.rows[1]);
  const CUtensorMap rows = map_of(p.rows, 1, R, work.k, 32), out = map_of(p.out, 1, R, work.m, 64);
  if (p.form == GroupedForm::kForward)
    return launch<GroupedForm::kForward>(map_of(p.other, E, work.m, work.k, kM), rows, out, p.out, work, stream);
  launch<GroupedForm::kInputGradient>(map_of(p.other, E, work.k, work.m, 64), rows, out, p.out, work, stream);
}

}  // namespace tri::cuda
