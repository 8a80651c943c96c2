// The rows of a mixture of experts: sorting pairs by expert, copies and weighted sums of rows. Formulas and shapes:
// kernels/expert_rows.h.
// Sort: a counting sort in three launches. Each block counts the experts of a run of pairs; one block turns the counts
// into first positions; each block places its pairs, in order, a warp 32 at a time. Bound: latency, 12 bytes a pair.
// Copies and sums: 16 bytes a thread. Bound: memory, each row read and written once. Reference: kernels/cpu/
// expert_rows.cpp.
#include <algorithm>

#include "kernels/core/dims.h"
#include "kernels/cuda/check.h"
#include "kernels/cuda/dispatch.h"
#include "kernels/cuda/grid.cuh"
#include "kernels/cuda/ops.h"
#include "kernels/cuda/reduce.cuh"
#include "kernels/cuda/workspace.h"
#include "kernels/expert_rows.h"

namespace tri::cuda {
namespace {

constexpr int kWarps = kThreads / 32, kScanThreads = 1024;
constexpr int kMostExperts = 1024;                   // counters of all warps of a block are in shared memory
constexpr int kRunUnit = kThreads, kMostRuns = 256;  // pairs of a run: a multiple of kRunUnit

// The pairs of a warp: [begin, end) of its block's run.
struct WarpRun {
  int64_t begin, end;
};
__device__ __forceinline__ WarpRun warp_run(int64_t pairs, int run) {
  const int of_warp = run / kWarps;
  const int64_t begin = blockIdx.x * int64_t{run} + static_cast<int>(threadIdx.x) / 32 * of_warp;
  return {min(begin, pairs), min(begin + of_warp, pairs)};
}

// Calls f(pair, expert, rank, last) for each pair of the warp, all lanes together: `rank` is its number among the
// warp's 32 pairs of the same expert, `last` whether it is the last of these. Lanes without a pair have expert -1.
template <class F>
__device__ __forceinline__ void for_each_pair(const int32_t* experts, WarpRun run, F&& f) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  for (int64_t at = run.begin; at < run.end; at += 32) {
    const int64_t p = at + lane;
    const int expert = p < run.end ? experts[p] : -1;
    const uint32_t same = __match_any_sync(0xFFFFFFFFu, expert);
    f(p, expert, __popc(same & ((1u << lane) - 1)), 31 - __clz(static_cast<int>(same)) == lane);
    __syncwarp();
  }
}

// counters (warps, E) of the block: pairs per expert.
__device__ __forceinline__ void count_pairs(int* counters, const int32_t* experts, int num_experts, WarpRun run) {
  for (int i = static_cast<int>(threadIdx.x); i < kWarps * num_experts; i += kThreads) counters[i] = 0;
  __syncthreads();
  int* const mine = counters + static_cast<int>(threadIdx.x) / 32 * num_experts;
  for_each_pair(experts, run, [&](int64_t, int expert, int rank, bool last) {
    if (last && expert >= 0) mine[expert] += rank + 1;
  });
  __syncthreads();
}

// counts (runs, E): of each run.
__global__ void __launch_bounds__(kThreads)
    count_pairs_kernel(int* counts, const int32_t* experts, int64_t pairs, int num_experts, int run) {
  extern __shared__ int counters[];
  count_pairs(counters, experts, num_experts, warp_run(pairs, run));
  for (int e = static_cast<int>(threadIdx.x); e < num_experts; e += kThreads) {
    int sum = 0;
    for (int w = 0; w < kWarps; ++w) sum += counters[w * num_experts + e];
    counts[blockIdx.x * num_experts + e] = sum;
  }
}

// Returns the sum of the values of lower threads; `total` is that of all. `shared` holds 32 integers.
__device__ __forceinline__ int block_scan(int value, int* shared, int& total) {
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  const auto warp_scan = [lane](int x) {  // includes the lane's own
#pragma unroll
    for (int offset = 1; offset < 32; offset *= 2) {
      const int below = __shfl_up_sync(0xFFFFFFFFu, x, offset);
      if (lane >= offset) x += below;
    }
    return x;
  };
  const int through = warp_scan(value);
  __syncthreads();  // earlier readers of `shared` have finished
  if (lane == 31) shared[warp] = through;
  __syncthreads();
  const int warps_through = warp_scan(lane < static_cast<int>(blockDim.x) / 32 ? shared[lane] : 0);
  total = __shfl_sync(0xFFFFFFFFu, warps_through, 31);
  const int before = warp == 0 ? 0 : __shfl_sync(0xFFFFFFFFu, warps_through, max(warp - 1, 0));
  return before + through - value;
}

// Replaces the counts by first positions: experts in order, of an expert the runs in order.
__global__ void __launch_bounds__(kScanThreads)
    first_positions_kernel(int32_t* offsets, int* counts, int num_experts, int runs) {
  __shared__ int shared[32];
  const int e = static_cast<int>(threadIdx.x);
  int sum = 0, total = 0;
  if (e < num_experts)
#pragma unroll 8
    for (int run = 0; run < runs; ++run) sum += counts[run * num_experts + e];
  int position = block_scan(sum, shared, total);
  if (e == 0) offsets[num_experts] = total;
  if (e >= num_experts) return;
  offsets[e] = position;
#pragma unroll 8
  for (int run = 0; run < runs; ++run) {
    const int count = counts[run * num_experts + e];
    counts[run * num_experts + e] = position;
    position += count;
  }
}

__global__ void __launch_bounds__(kThreads)
    place_pairs_kernel(int32_t* place, int32_t* pair, const int* first, const int32_t* experts, int64_t pairs,
                       int num_experts, int run) {
  extern __shared__ int counters[];
  const WarpRun mine = warp_run(pairs, run);
  count_pairs(counters, experts, num_experts, mine);
  for (int e = static_cast<int>(threadIdx.x); e < num_experts; e += kThreads) {
    int position = first[blockIdx.x * num_experts + e];
    for (int w = 0; w < kWarps; ++w) {
      const int count = counters[w * num_experts + e];
      counters[w * num_experts + e] = position;
      position += count;
    }
  }
  __syncthreads();
  int* const next = counters + static_cast<int>(threadIdx.x) / 32 * num_experts;
  for_each_pair(experts, mine, [&](int64_t p, int expert, int rank, bool last) {
    const int position = expert >= 0 ? next[expert] + rank : 0;
    __syncwarp();
    if (expert < 0) return;
    if (last) next[expert] = position + 1;
    place[p] = position;
    pair[position] = static_cast<int32_t>(p);
  });
}

// first (2, S · E): of each (source, expert) the first arrived row and the first sorted position.
__global__ void __launch_bounds__(kScanThreads)
    merge_positions_kernel(int* first, int32_t* offsets, const int32_t* counts, int sources, int num_experts) {
  __shared__ int shared[32];
  const int all = sources * num_experts;
  int arrived = 0, sorted = 0;
  for (int begin = 0; begin < all; begin += kScanThreads) {
    const int i = begin + static_cast<int>(threadIdx.x);
    int total = 0;
    const int before = block_scan(i < all ? counts[i] : 0, shared, total);
    if (i < all) first[i] = arrived + before;
    arrived += total;
    const int e = i / sources, s = i - e * sources, at = s * num_experts + e;  // experts in order
    const int position = sorted + block_scan(i < all ? counts[at] : 0, shared, total);
    if (i < all) first[all + at] = position;
    if (i < all && s == 0) offsets[e] = position;
    sorted += total;
  }
  if (threadIdx.x == 0) offsets[num_experts] = sorted;
}

// A warp per (source, expert). Rows beyond the memory are not written.
__global__ void __launch_bounds__(kThreads) merge_sources_kernel(int32_t* place, int32_t* pair, const int* first,
                                                                 const int32_t* counts, int all, int64_t rows) {
  const int run = static_cast<int>(blockIdx.x) * kWarps + static_cast<int>(threadIdx.x) / 32;
  if (run >= all) return;
  const int arrived = first[run], sorted = first[all + run], count = counts[run];
  for (int i = static_cast<int>(threadIdx.x) % 32; i < count; i += 32) {
    if (arrived + i >= rows || sorted + i >= rows) continue;
    pair[sorted + i] = arrived + i;
    place[arrived + i] = sorted + i;
  }
}

// A warp per row; `packs` of a row.
template <class Unit>
__global__ void __launch_bounds__(kThreads)
    gather_rows_kernel(Unit* out, const Unit* inp, const int32_t* index, int64_t rows, int64_t packs, int divisor,
                       const int32_t* used) {
  const int64_t row = blockIdx.x * int64_t{kWarps} + threadIdx.x / 32;
  if (row >= rows || (used != nullptr && row >= *used)) return;
  const Unit* from = inp + index[row] / divisor * packs;
  Unit* to = out + row * packs;
#pragma unroll 4
  for (int64_t i = threadIdx.x % 32; i < packs; i += 32) to[i] = from[i];
}

// The same, times weights[index].
template <class T, int kVec>
__global__ void __launch_bounds__(kThreads)
    gather_weighted_kernel(T* out, const T* inp, const int32_t* index, const float* weights, int64_t rows, int width,
                           int divisor, const int32_t* used) {
  const int64_t row = blockIdx.x * int64_t{kWarps} + threadIdx.x / 32;
  if (row >= rows || (used != nullptr && row >= *used)) return;
  const float weight = weights[index[row]];
  const T* from = inp + int64_t{index[row] / divisor} * width;
#pragma unroll 4
  for (int c = static_cast<int>(threadIdx.x) % 32 * kVec; c < width; c += 32 * kVec) {
    float x[kVec];
    unpack(load_pack<kVec>(from + c), x);
#pragma unroll
    for (int i = 0; i < kVec; ++i) x[i] *= weight;
    store_pack(out + row * width + c, pack_floats<T>(x));
  }
}

// A thread per pack of kVec elements.
template <class T, int kVec>
__global__ void __launch_bounds__(kThreads)
    combine_rows_kernel(T* out, const T* rows, const int32_t* place, const float* weights, const T* addend,
                        int64_t num_rows, int width, int per_token) {
  const int packs = width / kVec;
  const int64_t thread = thread_index(), r = thread / packs;
  if (r >= num_rows) return;
  const int64_t column = (thread - r * packs) * kVec, at = r * width + column;
  float sum[kVec] = {};
  if (addend != nullptr) unpack(load_pack<kVec>(addend + at), sum);
  constexpr int kAtOnce = 4;
  int k = 0;
  const auto add = [&](const Pack<T, kVec>& pack, float weight) {
    float x[kVec];
    unpack(pack, x);
#pragma unroll
    for (int i = 0; i < kVec; ++i) sum[i] = fmaf(weight, x[i], sum[i]);
  };
  for (; k + kAtOnce <= per_token; k += kAtOnce) {
    Pack<T, kVec> packs_of[kAtOnce];
    float by[kAtOnce];
#pragma unroll
    for (int n = 0; n < kAtOnce; ++n) {
      const int64_t p = r * per_token + k + n;
      packs_of[n] = load_pack<kVec>(rows + int64_t{place[p]} * width + column);
      by[n] = weights == nullptr ? 1.0f : weights[p];
    }
#pragma unroll
    for (int n = 0; n < kAtOnce; ++n) add(packs_of[n], by[n]);
  }
  for (; k < per_token; ++k) {
    const int64_t p = r * per_token + k;
    add(load_pack<kVec>(rows + int64_t{place[p]} * width + column), weights == nullptr ? 1.0f : weights[p]);
  }
  store_pack(out + at, pack_floats<T>(sum));
}

// A warp per pair. drows may be rows: an element is read before the same thread writes it. drows may be null.
template <class T, int kVec>
__global__ void __launch_bounds__(kThreads)
    combine_backward_kernel(T* drows, float* dweights, const T* dout, const T* rows, const int32_t* place,
                            const float* weights, int64_t pairs, int width, int per_token) {
  const int64_t p = blockIdx.x * int64_t{kWarps} + threadIdx.x / 32;
  if (p >= pairs) return;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int64_t at = int64_t{place[p]} * width, from = p / per_token * width;
  const float weight = weights[p];
  float sum = 0;
#pragma unroll 2
  for (int c = lane * kVec; c < width; c += 32 * kVec) {
    float gradient[kVec], x[kVec];
    unpack(load_pack<kVec>(dout + from + c), gradient);
    unpack(load_pack<kVec>(rows + at + c), x);
#pragma unroll
    for (int i = 0; i < kVec; ++i) {
      sum = fmaf(gradient[i], x[i], sum);
      gradient[i] *= weight;
    }
    if (drows != nullptr) store_pack(drows + at + c, pack_floats<T>(gradient));
  }
  sum = warp_sum(sum);
  if (lane == 0) dweights[p] = sum;
}

unsigned blocks_of_warps(int64_t warps) { return static_cast<unsigned>(ceil_div(warps, kWarps)); }

}  // namespace

void sort_pairs(const SortPairs& a, CudaStream& stream) {
  const int64_t pairs = a.experts.numel();
  const auto num_experts = static_cast<int>(a.offsets.numel() - 1);
  TRI_REQUIRE(num_experts <= kMostExperts, "sort_pairs: {} experts on a GPU", num_experts);
  const auto run = static_cast<int>(round_up(std::max<int64_t>(ceil_div(pairs, kMostRuns), 1), kRunUnit));
  const auto runs = static_cast<int>(std::max<int64_t>(ceil_div(pairs, run), 1));
  auto* counts =
      static_cast<int*>(workspace(stream, Scratch::kSort, sizeof(int) * static_cast<size_t>(runs * num_experts)));
  const int32_t* experts = pointer<int32_t>(a.experts);
  const auto shared = static_cast<unsigned>(sizeof(int)) * kWarps * static_cast<unsigned>(num_experts);
  const auto blocks = static_cast<unsigned>(runs);
  count_pairs_kernel<<<blocks, kThreads, shared, stream>>>(counts, experts, pairs, num_experts, run);
  first_positions_kernel<<<1, kScanThreads, 0, stream>>>(pointer<int32_t>(a.offsets), counts, num_experts, runs);
  place_pairs_kernel<<<blocks, kThreads, shared, stream>>>(pointer<int32_t>(a.place), pointer<int32_t>(a.pair), counts,
                                                           experts, pairs, num_experts, run);
  TRI_CUDA_LAUNCH("sort_pairs");
}

void merge_sources(const MergeSources& a, CudaStream& stream) {
  const auto sources = static_cast<int>(a.counts[0]), num_experts = static_cast<int>(a.counts[1]);
  const int all = sources * num_experts;
  auto* first = static_cast<int*>(workspace(stream, Scratch::kSort, 2 * sizeof(int) * static_cast<size_t>(all)));
  merge_positions_kernel<<<1, kScanThreads, 0, stream>>>(first, pointer<int32_t>(a.offsets), pointer<int32_t>(a.counts),
                                                         sources, num_experts);
  merge_sources_kernel<<<blocks_of_warps(all), kThreads, 0, stream>>>(
      pointer<int32_t>(a.place), pointer<int32_t>(a.pair), first, pointer<int32_t>(a.counts), all, a.pair.numel());
  TRI_CUDA_LAUNCH("merge_sources");
}

void gather_rows(const GatherRows& a, CudaStream& stream) {
  const int64_t rows = a.out[0], bytes = a.out[1] * static_cast<int64_t>(dtype_bytes(a.out.dtype));
  if (rows == 0) return;
  if (!a.weights.empty()) {
    dispatch(a.inp.dtype, [&](auto type) {
      using T = decltype(type);
      const auto width = static_cast<int>(a.inp[1]);
      const auto kernel =
          aligned<T>(width, {a.out, a.inp}) ? gather_weighted_kernel<T, Pack<T>::kSize> : gather_weighted_kernel<T, 1>;
      kernel<<<blocks_of_warps(rows), kThreads, 0, stream>>>(pointer<T>(a.out), pointer<T>(a.inp),
                                                             pointer<int32_t>(a.index), pointer<float>(a.weights), rows,
                                                             width, a.divisor, pointer<int32_t>(a.used));
    });
    TRI_CUDA_LAUNCH("gather_rows");
    return;
  }
  const auto launch = [&](auto unit) {
    using Unit = decltype(unit);
    gather_rows_kernel<Unit><<<blocks_of_warps(rows), kThreads, 0, stream>>>(
        pointer<Unit>(a.out), pointer<Unit>(a.inp), pointer<int32_t>(a.index), rows,
        bytes / static_cast<int64_t>(sizeof(Unit)), a.divisor, pointer<int32_t>(a.used));
  };
  if (aligned<char>(bytes, {a.out, a.inp}))
    launch(uint4{});
  else if (bytes % 2 == 0)
    launch(uint16_t{});
  else
    launch(uint8_t{});
  TRI_CUDA_LAUNCH("gather_rows");
}

void combine_rows(const CombineRows& a, CudaStream& stream) {
  const int64_t rows = a.out[0], width = a.out[1];
  if (rows == 0) return;
  dispatch(a.out.dtype, [&](auto type) {
    using T = decltype(type);
    constexpr int kVec = Pack<T>::kSize;
    const bool packs = aligned<T>(width, {a.out, a.rows, a.addend});
    const auto kernel = packs ? combine_rows_kernel<T, kVec> : combine_rows_kernel<T, 1>;
    kernel<<<blocks_for(rows * (packs ? width / kVec : width)), kThreads, 0, stream>>>(
        pointer<T>(a.out), pointer<T>(a.rows), pointer<int32_t>(a.place), pointer<float>(a.weights),
        pointer<T>(a.addend), rows, static_cast<int>(width), static_cast<int>(a.place[1]));
  });
  TRI_CUDA_LAUNCH("combine_rows");
}

void combine_backward(const CombineBackward& a, CudaStream& stream) {
  const int64_t pairs = a.place.numel(), width = a.dout[1];
  if (pairs == 0) return;
  dispatch(a.dout.dtype, [&](auto type) {
    using T = decltype(type);
    constexpr int kVec = Pack<T>::kSize;
    const bool packs = aligned<T>(width, {a.drows, a.dout, a.rows});
    const auto kernel = packs ? combine_backward_kernel<T, kVec> : combine_backward_kernel<T, 1>;
    kernel<<<blocks_of_warps(pairs), kThreads, 0, stream>>>(pointer<T>(a.drows), pointer<float>(a.dweights),
                                                            pointer<T>(a.dout), pointer<T>(a.rows),
                                                            pointer<int32_t>(a.place), pointer<float>(a.weights), pairs,
                                                            static_cast<int>(width), static_cast<int>(a.place[1]));
  });
  TRI_CUDA_LAUNCH("combine_backward");
}

}  // namespace tri::cuda
