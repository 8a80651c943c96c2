// Rows of experts in the memory of other GPUs. Formulas and shapes: kernels/peer_rows.h.
// Plan: one block; a thread per expert adds up the counts of the sources, a scan adds up those of the experts. Then a
// block per expert writes origins.
// Fetch: a warp per pair, 16 bytes a lane; the block's copy of the offsets determines the pair's expert. With a limit
// on multiprocessors, each has one block, of as many threads as there are.
// Bound: NVLink, each row once; latency for the plan. Reference: kernels/cpu/peer_rows.cpp.
#include "kernels/peer_rows.h"

#include <algorithm>

#include "kernels/core/dims.h"
#include "kernels/cuda/check.h"
#include "kernels/cuda/dispatch.h"
#include "kernels/cuda/ops.h"
#include "kernels/cuda/workspace.h"

namespace tri::cuda {
namespace {

constexpr int kRowThreads = 256, kMostThreads = 1024, kPlanThreads = 1024;
constexpr int kMostExperts = 1024;

// A block row per member.
__global__ void __launch_bounds__(kRowThreads)
    share_pairs_kernel(PeerPlaces all_offsets, PeerPlaces all_pairs, const int32_t* offsets, const int32_t* pair,
                       int num_offsets, int pairs, int member) {
  int32_t* const to_offsets = static_cast<int32_t*>(all_offsets.data[blockIdx.y]) + int64_t{member} * num_offsets;
  int32_t* const to_pairs = static_cast<int32_t*>(all_pairs.data[blockIdx.y]) + int64_t{member} * pairs;
  const int thread = static_cast<int>(blockIdx.x * kRowThreads + threadIdx.x),
            stride = static_cast<int>(gridDim.x) * kRowThreads;
  for (int i = thread; i < num_offsets; i += stride) to_offsets[i] = offsets[i];
  for (int i = thread; i < pairs; i += stride) to_pairs[i] = pair[i];
}

// A block per expert of the owner.
__global__ void __launch_bounds__(kRowThreads)
    origins_kernel(int32_t* origin, const int32_t* offsets, const int32_t* all_offsets, const int32_t* all_pairs,
                   int members, int experts, int member, int rows, int pairs) {
  const int e = member * (experts / members) + static_cast<int>(blockIdx.x);
  int begin = offsets[blockIdx.x];
  for (int source = 0; source < members; ++source) {
    const int32_t* const at = all_offsets + source * (experts + 1) + e;
    const int from = at[0], count = at[1] - from;
    for (int i = static_cast<int>(threadIdx.x); i < count && begin + i < rows; i += kRowThreads)
      origin[begin + i] = source * pairs + all_pairs[int64_t{source} * pairs + from + i];
    begin += count;
  }
}

__global__ void __launch_bounds__(kPlanThreads)
    plan_rows_kernel(int32_t* first, int32_t* offsets, int32_t* shortage, const int32_t* all, int members, int experts,
                     int member, int rows) {
  __shared__ int count[kMostExperts], before[kMostExperts];  // rows of an expert; of these, from lower sources
  __shared__ int needs[PeerPlaces::kMost][3];                // of an owner: rows, its fullest expert, rows of that
  const int of_owner = experts / members;
  for (int e = static_cast<int>(threadIdx.x); e < experts; e += kPlanThreads) {
    int sum = 0, lower = 0;
    for (int source = 0; source < members; ++source) {
      const int32_t* const at = all + source * (experts + 1) + e;
      if (source == member) lower = sum;
      sum += at[1] - at[0];
    }
    count[e] = sum;
    before[e] = lower;
  }
  __syncthreads();
  // A warp per owner: its lanes scan 32 experts at a time.
  const int lane = static_cast<int>(threadIdx.x) % 32, owner = static_cast<int>(threadIdx.x) / 32;
  if (owner < members) {
    int row = 0, most = -1, fullest = 0;
    for (int begin = 0; begin < of_owner; begin += 32) {
      const bool is_one = begin + lane < of_owner;
      const int e = owner * of_owner + begin + lane, own = is_one ? count[e] : 0;
      int through = own;
#pragma unroll
      for (int offset = 1; offset < 32; offset *= 2) {
        const int lower = __shfl_up_sync(0xFFFFFFFFu, through, offset);
        if (lane >= offset) through += lower;
      }
      if (is_one) {
        const int start = row + through - own;
        first[e] = start + before[e];
        if (owner == member) offsets[begin + lane] = min(start, rows);
      }
      const int largest = __reduce_max_sync(0xFFFFFFFFu, is_one ? own : -1);
      if (largest > most) {
        most = largest;
        fullest = owner * of_owner + begin +
                  __ffs(static_cast<int>(__ballot_sync(0xFFFFFFFFu, is_one && own == largest))) - 1;
      }
      row += __shfl_sync(0xFFFFFFFFu, through, 31);
    }
    if (owner == member && lane == 0) offsets[of_owner] = min(row, rows);
    if (lane == 0) needs[owner][0] = row, needs[owner][1] = fullest, needs[owner][2] = most;
  }
  __syncthreads();
  if (threadIdx.x == 0)
    for (int o = 0; o < members; ++o) {
      if (needs[o][0] <= rows || needs[o][0] <= shortage[0]) continue;
      shortage[0] = needs[o][0];
      shortage[1] = o * of_owner;
      shortage[2] = needs[o][1];
      shortage[3] = needs[o][2];
    }
}

// Calls f(pair, owner, row) for the pair of each warp, all lanes together.
template <int kThreads, class F>
__device__ __forceinline__ void for_each_row(const int32_t* offsets, const int32_t* first, int experts, int members,
                                             F f) {
  extern __shared__ int shared[];  // offsets (E + 1), first (E)
  for (int i = static_cast<int>(threadIdx.x); i <= experts; i += kThreads) {
    shared[i] = offsets[i];
    if (i < experts) shared[experts + 1 + i] = first[i];
  }
  __syncthreads();
  const int pairs = shared[experts], of_owner = experts / members;
  constexpr int kWarps = kThreads / 32;
  for (int i = static_cast<int>(blockIdx.x) * kWarps + static_cast<int>(threadIdx.x) / 32; i < pairs;
       i += static_cast<int>(gridDim.x) * kWarps) {
    int low = 0, high = experts - 1;  // the last expert that begins at or before i
    while (low < high) {
      const int middle = (low + high + 1) / 2;
      if (shared[middle] <= i)
        low = middle;
      else
        high = middle - 1;
    }
    f(i, low / of_owner, shared[experts + 1 + low] + i - shared[low]);
  }
}

template <class Unit>
__device__ __forceinline__ void copy_row(Unit* to, const Unit* from, int units) {
  constexpr int kAhead = 4;  // loads of a lane in flight
  for (int first = static_cast<int>(threadIdx.x) % 32; first < units; first += 32 * kAhead) {
    Unit values[kAhead];
#pragma unroll
    for (int i = 0; i < kAhead; ++i)
      if (first + 32 * i < units) values[i] = from[first + 32 * i];
#pragma unroll
    for (int i = 0; i < kAhead; ++i)
      if (first + 32 * i < units) to[first + 32 * i] = values[i];
  }
}

template <class Unit, int kThreads>
__global__ void __launch_bounds__(kThreads) fetch_rows_kernel(Unit* out, PeerPlaces from, const int32_t* offsets,
                                                              const int32_t* first, int experts, int rows, int units) {
  for_each_row<kThreads>(offsets, first, experts, from.members, [&](int i, int owner, int row) {
    Unit* const to = out + int64_t{i} * units;
    if (row < rows) return copy_row(to, static_cast<const Unit*>(from.data[owner]) + int64_t{row} * units, units);
    Unit nan;
    memset(&nan, 0xFF, sizeof nan);
    for (int u = static_cast<int>(threadIdx.x) % 32; u < units; u += 32) to[u] = nan;
  });
}

// Launches kernel(unit) with the widest unit of a row of `bytes`.
template <class Launch>
void with_unit(int64_t bytes, const PeerPlaces& places, const Tensor& own, Launch launch) {
  auto bits = static_cast<uintptr_t>(bytes) | reinterpret_cast<uintptr_t>(own.data);
  for (int m = 0; m < places.members; ++m) bits |= reinterpret_cast<uintptr_t>(places.data[static_cast<size_t>(m)]);
  if (bits % 16 == 0)
    launch(uint4{});
  else if (bits % 2 == 0)
    launch(uint16_t{});
  else
    launch(uint8_t{});
}

unsigned row_blocks(int64_t pairs, CudaStream& stream) {
  return static_cast<unsigned>(
      std::clamp<int64_t>(ceil_div(pairs, kRowThreads / 32), 1, int64_t{16} * num_multiprocessors(stream)));
}

int64_t row_bytes(const Tensor& rows) { return rows[1] * static_cast<int64_t>(dtype_bytes(rows.dtype)); }

}  // namespace

void share_pairs(const SharePairs& a, CudaStream& stream) {
  constexpr int64_t kOfThread = 4;
  const auto pairs = static_cast<int>(a.pair.numel());
  const dim3 blocks(
      static_cast<unsigned>(ceil_div(std::max(a.pair.numel(), a.offsets.numel()), kRowThreads * kOfThread)),
      static_cast<unsigned>(a.all_pairs.members));
  share_pairs_kernel<<<blocks, kRowThreads, 0, stream>>>(a.all_offsets, a.all_pairs, pointer<int32_t>(a.offsets),
                                                         pointer<int32_t>(a.pair), static_cast<int>(a.offsets.numel()),
                                                         pairs, a.member);
  TRI_CUDA_LAUNCH("share_pairs");
}

void plan_rows(const PlanRows& a, CudaStream& stream) {
  const auto members = static_cast<int>(a.all_offsets[0]), experts = static_cast<int>(a.first.numel());
  const auto rows = static_cast<int>(a.origin.numel());
  TRI_REQUIRE(experts <= kMostExperts && members <= PeerPlaces::kMost, "plan_rows: {} experts of {} members", experts,
              members);
  plan_rows_kernel<<<1, kPlanThreads, 0, stream>>>(pointer<int32_t>(a.first), pointer<int32_t>(a.offsets),
                                                   pointer<int32_t>(a.shortage), pointer<int32_t>(a.all_offsets),
                                                   members, experts, a.member, rows);
  origins_kernel<<<static_cast<unsigned>(experts / members), kRowThreads, 0, stream>>>(
      pointer<int32_t>(a.origin), pointer<int32_t>(a.offsets), pointer<int32_t>(a.all_offsets),
      pointer<int32_t>(a.all_pairs), members, experts, a.member, rows, static_cast<int>(a.all_pairs[1]));
  TRI_CUDA_LAUNCH("plan_rows");
}

void fetch_rows(const FetchRows& a, CudaStream& stream) {
  const auto experts = static_cast<int>(a.first.numel());
  const int64_t bytes = row_bytes(a.out);
  const auto shared = static_cast<unsigned>(sizeof(int)) * static_cast<unsigned>(2 * experts + 1);
  with_unit(bytes, a.from, a.out, [&](auto unit) {
    using Unit = decltype(unit);
    const auto fetch = [&](auto kernel, unsigned blocks, int threads) {
      kernel<<<blocks, threads, shared, stream>>>(pointer<Unit>(a.out), a.from, pointer<int32_t>(a.offsets),
                                                  pointer<int32_t>(a.first), experts, static_cast<int>(a.rows),
                                                  static_cast<int>(bytes / static_cast<int64_t>(sizeof(Unit))));
    };
    if (a.multiprocessors > 0)
      fetch(fetch_rows_kernel<Unit, kMostThreads>, static_cast<unsigned>(a.multiprocessors), kMostThreads);
    else
      fetch(fetch_rows_kernel<Unit, kRowThreads>, row_blocks(a.out[0], stream), kRowThreads);
  });
  TRI_CUDA_LAUNCH("fetch_rows");
}

}  // namespace tri::cuda
