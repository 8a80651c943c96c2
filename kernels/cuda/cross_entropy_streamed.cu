// Cross-entropy of the full vocabulary where rows are too wide for one block to keep: formulas in
// kernels/cross_entropy.h.
//   logits (R, V) bf16|f32, in place
// Mapping: a cluster of blocks takes every so many-th row, each block a share of its columns, which stream through a
// ring of chunks in its shared memory. 512 threads read a row twice there: for the statistics, which the blocks send
// each other, and for the gradient. Chunk by chunk they write a row's gradient, which frees the chunk, and take the
// next row's statistics, while one thread of a warp of its own has the copy engine fetch what comes after: so memory
// reads and writes all the time.
// Limits: sm_90 on; rows of whole 16-byte packs, of at most the rings of eight blocks.
// Bound: memory; R·V elements read and written. Mirror: kernels/cpu/cross_entropy.cpp.
#include <algorithm>

#include "kernels/core/dims.h"
#include "kernels/cuda/check.h"
#include "kernels/cuda/context.h"
#include "kernels/cuda/cross_entropy.cuh"
#include "kernels/cuda/hopper.cuh"

namespace tri::cuda {
namespace cross_entropy {
namespace {

constexpr int kWarps = kThreads / 32;  // that compute
constexpr int kChunkBytes = 16 * 1024, kStages = 14, kRingBytes = kStages * kChunkBytes;
constexpr int kShareBytes = 8 * kChunkBytes;  // of a row, a block: leaves the ring room for most of the next row's
constexpr int kMostBlocks = 8;                // a cluster, on any GPU that has them

// What the blocks' threads tell each other of a row. Two of each, for rows by turns: who is a row ahead overwrites
// nothing that is still read, for it has had the statistics of the row before from all.
struct Exchange {
  uint64_t full[kStages], free[kStages];  // barriers: a chunk is there; all warps have done with it
  uint64_t known[2];                      // all blocks' statistics are there
  float2 of_warps[2][kWarps], of_blocks[2][kMostBlocks];
};

// ---- clusters (PTX ISA, "mapa", "st.async", "barrier.cluster")

#if __CUDA_ARCH__ >= 900
// All threads of the cluster's blocks wait for each other.
__device__ __forceinline__ void cluster_sync() {
  asm volatile("barrier.cluster.arrive;\nbarrier.cluster.wait;" ::: "memory");
}
// Of another block of the cluster: the shared address that here is `mine`.
__device__ __forceinline__ uint32_t address_in(int block, uint32_t mine) {
  uint32_t at;
  asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(at) : "r"(mine), "r"(block));
  return at;
}
// Stores two floats in a block of the cluster, whose barrier counts their bytes.
__device__ __forceinline__ void send_pair(uint32_t to, float2 pair, uint32_t barrier) {
  asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.v2.f32 [%0], {%1, %2}, [%3];" ::"r"(to),
               "f"(pair.x), "f"(pair.y), "r"(barrier)
               : "memory");
}

// The row's statistics over the threads of all blocks, equal bits in each thread. `phase`: of this use of `known`.
__device__ __forceinline__ Stats combine(const Stats& own, Exchange& exchange, int turn, uint32_t phase, int block,
                                         int blocks) {
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  // Over the lanes; the largest is -inf, and the sum 0 or NaN, where a lane has met no number.
  const auto over_lanes = [](const Stats& stats) {
    Stats all;
    all.most = warp_max(stats.most);
    all.sum = warp_sum(stats.of(all.most));
    return all;
  };
  const auto stats_of = [](float2 pair) {
    Stats stats;
    stats.most = pair.x, stats.sum = pair.y;
    return stats;
  };
  const Stats of_warp = over_lanes(own);
  if (lane == 0) exchange.of_warps[turn][warp] = {of_warp.most, of_warp.sum};
  hopper::named_barrier_sync(1, kThreads);
  const Stats of_block = over_lanes(lane < kWarps ? stats_of(exchange.of_warps[turn][lane]) : Stats());
  const uint32_t known = shared_address(&exchange.known[turn]);
  if (threadIdx.x == 0) {
    hopper::barrier_expect(known, static_cast<uint32_t>(sizeof(float2)) * static_cast<uint32_t>(blocks));
    const uint32_t to = shared_address(&exchange.of_blocks[turn][block]);
    for (int b = 0; b < blocks; ++b) send_pair(address_in(b, to), {of_block.most, of_block.sum}, address_in(b, known));
  }
  hopper::barrier_wait(known, phase);
  return over_lanes(lane < blocks ? stats_of(exchange.of_blocks[turn][lane]) : Stats());
}
#endif

template <class T, int kVec>
__global__ void __launch_bounds__(kThreads + 32, 1)
    streamed_loss_kernel(Loss<T> a, Columns whole, int rows, int blocks, int share) {
  static_assert(kVec * sizeof(T) == 16);
#if __CUDA_ARCH__ >= 900
  using namespace hopper;
  constexpr int kChunk = kChunkBytes / static_cast<int>(sizeof(T));  // columns
  extern __shared__ __align__(128) unsigned char ring[];
  __shared__ Exchange exchange;
  const int block = static_cast<int>(blockIdx.x) % blocks, clusters = static_cast<int>(gridDim.x) / blocks,
            first_row = static_cast<int>(blockIdx.x) / blocks, warp = static_cast<int>(threadIdx.x) / 32,
            lane = static_cast<int>(threadIdx.x) % 32;
  const Columns c = whole.part(block * share, share);
  T* const first = a.logits + block * share;
  const int chunks = (c.stride + kChunk - 1) / kChunk;
  const auto full = [&](uint32_t stage) { return shared_address(&exchange.full[stage]); };
  const auto free = [&](uint32_t stage) { return shared_address(&exchange.free[stage]); };
  if (threadIdx.x == 0) {
    for (uint32_t stage = 0; stage < kStages; ++stage) barrier_init(full(stage), 1), barrier_init(free(stage), kWarps);
    for (auto& known : exchange.known) barrier_init(shared_address(&known), 1);
    barrier_init_done();
  }
  cluster_sync();

  if (warp == kWarps) {
    RingPlace<kStages> place;
    for (int r = first_row; r < rows && lane == 0; r += clusters)
      for (int chunk = 0; chunk < chunks; ++chunk, place.next()) {
        const int begin = chunk * kChunk;
        const uint32_t bytes = static_cast<uint32_t>(min(kChunk, c.stride - begin)) * sizeof(T);
        barrier_wait(free(place.stage), place.round ^ 1);
        barrier_expect(full(place.stage), bytes);
        load_bytes(shared_address(ring) + place.stage * kChunkBytes, first + r * int64_t{whole.stride} + begin, bytes,
                   full(place.stage));
      }
    __syncwarp();
  } else {
    RingPlace<kStages> writing, reading;
    int turn = 0;
    uint32_t phase = 0;
    const auto chunk_at = [&](uint32_t stage) { return reinterpret_cast<const T*>(ring + stage * kChunkBytes); };
    const auto read_chunk = [&](Stats& stats, int chunk) {
      barrier_wait(full(reading.stage), reading.round);
      add_columns<T, kVec>(stats, chunk_at(reading.stage), 0, c.part(chunk * kChunk, kChunk).columns);
      reading.next();
    };
    // Row r's log of the sum of exponentials, from this thread's statistics; and the row's loss.
    const auto row_lse = [&](const Stats& own, int r) {
      const int32_t token = a.targets[r];
      // The loss is the business of the block that has the target's column; of the first where the row has none.
      const int target = c.own(token);
      const bool tells = threadIdx.x == 0 && (target >= 0 || (block == 0 && whole.own(token) < 0));
      const float target_logit = tells && target >= 0 ? to_float(first[r * int64_t{whole.stride} + target]) : -INFINITY;
      const Stats stats = combine(own, exchange, turn, phase, block, blocks);  // its barrier: that logit was read
      phase ^= static_cast<uint32_t>(turn);
      turn ^= 1;
      const float lse = stats.most + logf(stats.sum);
      if (tells) a.row_losses[r] = lse - target_logit;
      return lse;
    };
    float lse = 0;
    if (first_row < rows) {
      Stats stats;
      for (int chunk = 0; chunk < chunks; ++chunk) read_chunk(stats, chunk);
      lse = row_lse(stats, first_row);
    }
    for (int r = first_row; r < rows; r += clusters) {
      T* const row = first + r * int64_t{whole.stride};
      const int next = r + clusters;
      Stats stats;
      for (int chunk = 0; chunk < chunks; ++chunk, writing.next()) {
        const Columns part = c.part(chunk * kChunk, kChunk);
        write_gradient<T, kVec>(row + chunk * kChunk, chunk_at(writing.stage), part, part.own(a.targets[r]), lse,
                                a.grad_scale);
        __syncwarp();
        if (lane == 0) barrier_arrive(free(writing.stage));
        if (next < rows) read_chunk(stats, chunk);
      }
      if (next < rows) lse = row_lse(stats, next);
    }
  }
  cluster_sync();  // nobody sends to a block that has gone
#endif
}

}  // namespace

template <class T>
bool launch_streamed(const Loss<T>& args, const Columns& c, unsigned rows, CudaStream& stream) {
  constexpr int kVec = 16 / sizeof(T);
  const GpuProperties& gpu = stream.context().properties();
  if (!gpu.has_clusters || kRingBytes + static_cast<int64_t>(sizeof(Exchange)) > gpu.max_shared_bytes) return false;
  const int64_t row_bytes = int64_t{c.stride} * static_cast<int64_t>(sizeof(T));
  const int blocks = static_cast<int>(std::min<int64_t>(ceil_div(row_bytes, int64_t{kShareBytes}), kMostBlocks));
  const int share = static_cast<int>(round_up(ceil_div(c.stride, blocks), kVec));
  if (share * static_cast<int64_t>(sizeof(T)) > kRingBytes) return false;
  auto kernel = streamed_loss_kernel<T, kVec>;
  TRI_CUDA(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kRingBytes));
  cudaLaunchAttribute cluster{};
  cluster.id = cudaLaunchAttributeClusterDimension;
  cluster.val.clusterDim.x = static_cast<unsigned>(blocks);
  cluster.val.clusterDim.y = cluster.val.clusterDim.z = 1;
  cudaLaunchConfig_t launch{};
  launch.gridDim = dim3(static_cast<unsigned>(blocks));
  launch.blockDim = dim3(kThreads + 32);
  launch.dynamicSmemBytes = kRingBytes;
  launch.stream = stream;
  launch.attrs = &cluster;
  launch.numAttrs = 1;
  int clusters = 0;  // that run at a time: one more would wait for all rows of another
  TRI_CUDA(cudaOccupancyMaxActiveClusters(&clusters, kernel, &launch));
  if (clusters == 0) return false;
  launch.gridDim.x *= std::min(rows, static_cast<unsigned>(clusters));
  TRI_CUDA(cudaLaunchKernelEx(&launch, kernel, args, c, static_cast<int>(rows), blocks, share));
  TRI_CUDA_LAUNCH("cross_entropy_loss");
  return true;
}

template bool launch_streamed(const Loss<float>&, const Columns&, unsigned, CudaStream&);
template bool launch_streamed(const Loss<__nv_bfloat16>&, const Columns&, unsigned, CudaStream&);

}  // namespace cross_entropy
}  // namespace tri::cuda
