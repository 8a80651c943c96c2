// Symmetric product on Hopper:  out = alpha · op(a) · op(a)^T + beta · addend.  Formula and shapes: kernels/gemm.h.
//
// Mapping: as in hopper_grouped_gemm.cuh, whose ring of stages, tickets and multiplication this kernel uses. A cluster
// of two blocks computes tiles of 256 x 256 of the lower triangle, row by row. Each of its four warpgroups writes its
// 64 x N in boxes of 64 x 64, below the diagonal also mirrored, while the next tile is multiplied. If the last tiles
// would leave most clusters idle, each of them is divided into two or four tiles of fewer columns. A warpgroup reads
// the addend in the layout of its sums, into the registers of the tile before, as soon as that is written.
//
// Limits: bf16, rows of whole 16-byte vectors. Sums in the order of K, whatever the tile: bits do not depend on the
// number of multiprocessors.
// Bound: tensor cores, S · (S + 256) · K FLOPs. Reference: kernels/cpu/gemm.cpp.
#include "kernels/cuda/gemm.h"
#include "kernels/cuda/hopper_grouped_gemm.cuh"

namespace tri::cuda {
namespace grouped {
namespace {

struct Lower {
  Work work;                    // m, n: the side
  const __nv_bfloat16* addend;  // null: none
  float alpha, beta;
  int whole, tiles;  // tiles of kN columns, and all
  int parts;         // of each 256 x 256 in the other tiles

  __host__ __device__ int columns(int tile, int width) const { return tile < whole ? width : width / parts; }
};

// Returns tile `index` for the block `rank` of the cluster.
template <class K>
__device__ __forceinline__ Tile lower_tile(const Lower& lower, int index, int rank) {
  static_assert(K::kN == kCluster * kM);
  const int rest = max(index - lower.whole, 0), count = lower.columns(index, K::kN);
  const int square = index - rest + rest / lower.parts, part = rest % lower.parts;
  auto row = static_cast<int>((sqrtf(8.0f * static_cast<float>(square) + 1.0f) - 1.0f) / 2.0f);
  while (row * (row + 1) / 2 > square) --row;
  while ((row + 1) * (row + 2) / 2 <= square) ++row;
  const int column = square - row * (row + 1) / 2;
  return {0, (row * kCluster + rank) * kM, column * K::kN + part * count, count};
}

// The loading thread.
template <class K>
__device__ __forceinline__ void load_lower(const CUtensorMap& m_map, const CUtensorMap& n_map, const Lower& lower,
                                           uint32_t base) {
  const uint32_t full = base + K::kBarriersAt, free = full + 8 * K::kStages;
  const int rank = static_cast<int>(cluster_rank()), steps = tiles_of(lower.work.k, K::kK);
  prefetch_map(&m_map);
  prefetch_map(&n_map);
  RingPlace<K::kStages> at;
  RingPlace<kTickets> ticket;  // the next tile, which the block 0 sends to the block 1
  for (int index = static_cast<int>(blockIdx.x) / kCluster;; ticket.next()) {
    barrier_wait(free + 8 * at.stage, at.round ^ 1);
    if (index >= lower.tiles) {
      store_tile(base + K::kTilesAt + 16 * at.stage, {-1, 0, 0, 0});
      barrier_arrive(full + 8 * at.stage);
      return;
    }
    const Tile tile = lower_tile<K>(lower, index, rank);
    store_tile(base + K::kTilesAt + 16 * at.stage, tile);
    int next = 0;
    if (rank == 0) next = static_cast<int>(gridDim.x) / kCluster + atomicAdd(lower.work.ticket, 1);  // takes long
    const int boxes = tile.count / 64;
#pragma unroll 1
    for (int step = 0; step < steps; ++step) {
      if (step > 0) barrier_wait(free + 8 * at.stage, at.round ^ 1);
      const uint32_t barrier = full + 8 * at.stage, of_m = base + at.stage * K::kStageBytes, of_n = of_m + kBytesOfM;
      barrier_expect(barrier, kBytesOfM + static_cast<uint32_t>(boxes) * kBox);
      const int k = step * K::kK;
      load_m<K>(of_m, m_map, barrier, k, tile.first_m, 0);
      for (int box = 0; box < boxes; ++box) {  // half of each
        const uint32_t to = of_n + box * kBox + rank * (kBox / 2);
        const int column = tile.first_n + box * 64;
        if constexpr (K::kTransN == 0)
          load_box_to(3, to, &n_map, barrier, k, column + rank * 32, 0);
        else
          load_box_to(3, to, &n_map, barrier, column, k + rank * 32, 0);
      }
      at.next();
      if (rank == 0 && step == min(2, steps - 1)) send_ticket<K>(base, ticket, next);
    }
    index = rank == 0 ? next : receive_ticket<K>(base, ticket);
  }
}

// One of the multiplying warpgroups.
template <class K>
struct LowerConsumer : Consumer<K> {
  const Lower& lower;
  static constexpr int kWrites = 2 * K::kPieces;

  // Writes 64 x 64 of the kept tile, or their mirror image. Boxes above the diagonal and outside of the matrix are not
  // written.
  template <int kPiece, bool kMirrored>
  __device__ __forceinline__ void write_box() {
    const int m = this->old.first_m + this->group * 64, n = this->old.first_n + kPiece * 64;
    if (kPiece * 64 >= this->old.count || m < n || m >= lower.work.m || (kMirrored && m == n)) return;
    const int warp = this->warp, lane = this->lane;
    const bool first = warp == 0 && lane == 0;
    const uint32_t to = this->base + K::kOutAt + this->group * K::kOutBytes + this->buffer;
    // Lanes give the addresses of rows of 8 x 8 matrices; mirrored: rows 0-7 and 8-15, 8 of M each.
    const int lane_row = lane / 16 * 8 + lane % 8;
    const uint32_t lane_at =
        static_cast<uint32_t>(lane_row) * kBoxRow + (static_cast<uint32_t>(warp * 2 + lane / 8 % 2) ^ (lane % 8)) * 16;
#pragma unroll
    for (int block = 0; block < 4; ++block) {
      const int i = kPiece * 16 + block * 4;
      const uint32_t matrices[4] = {this->rounded[i], this->rounded[i + 1], this->rounded[i + 2], this->rounded[i + 3]};
      if constexpr (kMirrored)
        store_matrix_transposed(to + lane_at + block * 16 * kBoxRow, matrices);
      else
        store_matrix(to + warp * 16 * kBoxRow + block_at(lane, block), matrices);
    }
    fence_async_proxy();
    if (first) store_wait_read();  // the other buffer may be written from now on
    this->sync_group();
    if (first) {
      store_box(&this->out_map, to, kMirrored ? m : n, kMirrored ? n : m, 0);
      store_commit();
    }
    this->buffer ^= kBox;
  }
  __device__ __forceinline__ void write_box(int number) {
    static_assert(K::kPieces == 4);
    if (number == 0) write_box<0, false>();
    if (number == 1) write_box<0, true>();
    if (number == 2) write_box<1, false>();
    if (number == 3) write_box<1, true>();
    if (number == 4) write_box<2, false>();
    if (number == 5) write_box<2, true>();
    if (number == 6) write_box<3, false>();
    if (number == 7) write_box<3, true>();
  }

  // Into the registers of the kept tile, which has been written.
  template <int kColumns>
  __device__ __forceinline__ void load_addend(const Tile& tile) {
    if (lower.addend == nullptr) return;
    const int side = lower.work.m;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = tile.first_m + this->group * 64 + this->warp * 16 + half * 8 + this->lane / 4;
      const auto* const from =
          reinterpret_cast<const uint32_t*>(lower.addend + int64_t{row} * side + tile.first_n + this->lane % 4 * 2);
#pragma unroll
      for (int n = 0; n < kColumns / 8; ++n)
        this->rounded[2 * n + half] = row < side && tile.first_n + n * 8 < side ? __ldg(from + 4 * n) : 0;
    }
  }

  template <int kColumns>
  __device__ __forceinline__ void tile_of(const Tile& tile) {
    float acc[kColumns / 2];
    const int extent = lower.work.k;
    this->template multiply_stage<true, kColumns>(acc, extent);
    write_box(0);
    uint32_t previous = this->at.stage;
    this->at.next();
    int step = 1;
#pragma unroll 1
    for (int left = extent - K::kK; left > 0; left -= K::kK, ++step) {
      this->template multiply_stage<false, kColumns>(acc, left);
      wgmma_wait<1>();
      this->release(previous);
      previous = this->at.stage;
      this->at.next();
      if (step < kWrites) write_box(step);
      if (step == kWrites) load_addend<kColumns>(tile);
    }
    wgmma_wait<0>();
    hold(acc);
    this->release(previous);
    for (; step < kWrites; ++step) write_box(step);  // K is short
    if (step == kWrites) load_addend<kColumns>(tile);
    const bool adds = lower.addend != nullptr;
#pragma unroll
    for (int i = 0; i < kColumns / 4; ++i) {
      const uint32_t pair = adds ? this->rounded[i] : 0;
      this->rounded[i] = pack_bf16(fmaf(lower.alpha, acc[2 * i], lower.beta * __uint_as_float(pair << 16)),
                                   fmaf(lower.alpha, acc[2 * i + 1], lower.beta * __uint_as_float(pair & 0xFFFF0000)));
    }
    this->old = tile;
  }

  __device__ __forceinline__ void run() {
    const Tile* const tiles = reinterpret_cast<const Tile*>(this->shared + K::kTilesAt);
    for (;;) {
      this->wait_full();
      const Tile tile = tiles[this->at.stage];
      if (tile.expert < 0) break;
      if (tile.count == 256)
        tile_of<256>(tile);
      else if (tile.count == 128)
        tile_of<128>(tile);
      else
        tile_of<64>(tile);
    }
    for (int number = 0; number < kWrites; ++number) write_box(number);
    store_wait();
  }
};

template <class K>
__global__ void __cluster_dims__(kCluster, 1, 1) __launch_bounds__(kThreads, 1)
    symmetric_product_kernel(const __grid_constant__ CUtensorMap m_map, const __grid_constant__ CUtensorMap n_map,
                             const __grid_constant__ CUtensorMap out_map, const __grid_constant__ Lower lower) {
  extern __shared__ __align__(1024) unsigned char shared[];
  const uint32_t base = shared_address(shared);
  if (threadIdx.x == 0) init_barriers<K>(base);
  __syncthreads();
  cluster_sync();

  const int warpgroup = static_cast<int>(threadIdx.x) / 128;
  if (warpgroup == 0) {
    lower_registers<kProducerRegisters>();
    if (threadIdx.x == 0) load_lower<K>(m_map, n_map, lower, base);
  } else {
    raise_registers<kConsumerRegisters>();
    LowerConsumer<K> consumer{{out_map, lower.work, nullptr, shared, base, warpgroup - 1,
                               static_cast<int>(threadIdx.x) / 32 % 4, static_cast<int>(threadIdx.x) % 32, 1.0f},
                              lower};
    consumer.run();
  }
  cluster_sync();  // the other block may still write to this one's shared memory
}

template <class K>
void launch_lower(const SymmetricProduct& p, CudaStream& stream) {
  const int64_t rows = p.a[0], columns = p.a[1];
  const auto side = static_cast<int>(p.out[0]);
  const auto k = static_cast<int>(K::kTransM == 0 ? columns : rows);
  const int clusters = num_multiprocessors(stream) / kCluster, along = ceil_div(side, K::kN);
  const int squares = along * (along + 1) / 2, rest = squares % clusters;
  const int parts = rest * 4 <= clusters ? 4 : rest * 2 <= clusters ? 2 : 1;
  const Lower lower{.work = {.ticket = static_cast<int*>(workspace(stream, Scratch::kTickets, sizeof(int))),
                             .offsets = nullptr,
                             .experts = 0,
                             .m = side,
                             .n = side,
                             .k = k,
                             .add = false,
                             .inverse_m = nullptr,
                             .inverse_n = nullptr},
                    .addend = static_cast<const __nv_bfloat16*>(p.addend.data),
                    .alpha = p.alpha,
                    .beta = p.beta,
                    .whole = squares - rest,
                    .tiles = squares - rest + rest * parts,
                    .parts = parts};
  const CUtensorMap m_map = map_of(p.a, 1, rows, columns, K::kTransM == 0 ? kM : 64),
                    n_map = map_of(p.a, 1, rows, columns, 32), out_map = map_of(p.out, 1, side, side, 64);
  const auto kernel = symmetric_product_kernel<K>;
  TRI_CUDA(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, K::kShared));
  TRI_CUDA(cudaMemsetAsync(lower.work.ticket, 0, sizeof(int), stream));
  const auto blocks = static_cast<unsigned>(std::min(lower.tiles, clusters) * kCluster);
  kernel<<<blocks, kThreads, K::kShared, stream>>>(m_map, n_map, out_map, lower);
  TRI_CUDA_LAUNCH("hopper_symmetric_product");
}

}  // namespace
}  // namespace grouped

bool hopper_symmetric_product_takes(const SymmetricProduct& p) {
  int64_t bits = (p.a[1] | p.out[1]) * static_cast<int64_t>(dtype_bytes(p.a.dtype));
  for (const Tensor& tensor : {p.out, p.a, p.addend})
    bits |= static_cast<int64_t>(reinterpret_cast<uintptr_t>(tensor.data));
  return p.a.dtype == Dtype::kBF16 && p.out.dtype == Dtype::kBF16 && bits % 16 == 0;
}

void hopper_symmetric_product(const SymmetricProduct& p, CudaStream& stream) {
  using namespace grouped;
  if (p.trans_a == Trans::kNo)
    launch_lower<Kind<true, Bf16<0, 0>>>(p, stream);
  else
    launch_lower<Kind<true, Bf16<1, 1>>>(p, stream);
}

}  // namespace tri::cuda
