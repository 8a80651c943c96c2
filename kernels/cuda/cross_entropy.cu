// Vocabulary-parallel cross-entropy: formulas in kernels/cross_entropy.h.
//   logits (R, Vl) bf16|f32, in place; stats (R, 3) f32, gathered (tp, R, 3)
// Mapping: one block of 512 threads per row, sixteen bytes per load if rows are aligned. Each thread keeps a running
// maximum and sum over its columns. If this rank holds the full vocabulary, one kernel does all the work. If two rows
// fit in a multiprocessor's shared memory, each block stages its row there (cp.async, each thread its own packs,
// statistics computed while the rest is in flight), and the two blocks of a multiprocessor hide each other's latency.
// Wider rows (LLaMA 3) are divided over the blocks of a cluster, which read each other's statistics; without clusters
// the row is read a second time. The row losses go to scratch, and one block adds them in a fixed order.
// Bound: memory; R·Vl elements read and written, and read once more when the vocabulary is split.
// Reference: kernels/cpu/cross_entropy.cpp.
#include <algorithm>

#include "kernels/core/dims.h"
#include "kernels/cuda/check.h"
#include "kernels/cuda/context.h"
#include "kernels/cuda/dispatch.h"
#include "kernels/cuda/mma.cuh"
#include "kernels/cuda/ops.h"
#include "kernels/cuda/reduce.cuh"
#include "kernels/no_target.h"

namespace tri::cuda {
namespace {

constexpr int kThreads = 512;
constexpr size_t kStagedBytes = 112 * 1024;  // of a row in one block: half of a multiprocessor's shared memory
constexpr size_t kStaticBytes = 1024;        // the most static shared memory in addition to it
constexpr int kMostBlocks = 8;               // of a cluster, on any GPU that supports clusters

// This rank's part of the vocabulary.
struct Columns {
  int stride;   // Vl
  int columns;  // of them without padding
  int first_token;
  __device__ int own(int32_t target) const {  // returns the target's column on this rank, or -1
    const int column = target - first_token;
    return column >= 0 && column < columns ? column : -1;
  }
  // Returns the columns [begin, begin + count) of a row.
  __device__ Columns part(int begin, int count) const {
    return {min(stride - begin, count), max(0, min(columns - begin, count)), first_token + begin};
  }
};

// What replaces a logit before everything else: itself or, if kCapped, c · tanh(logit / c).
template <bool kCapped>
struct Softcap {
  float cap, exponent;
  __device__ __forceinline__ float operator()(float logit) const {
    return kCapped ? capped(logit, cap, exponent) : logit;
  }
  // Returns the gradient of a logit from that of `value`, which replaced it.
  __device__ __forceinline__ float chain(float gradient, float value) const {
    if constexpr (!kCapped) return gradient;
    const float ratio = __fdividef(value, cap);
    return gradient * fmaf(-ratio, ratio, 1.0f);
  }
};
template <bool kCapped>
Softcap<kCapped> softcap_of(float cap) {
  return {cap, kCapped ? softcap_exponent(cap) : 0.0f};
}

// Statistics of a row or a part of it: the largest logit, and the sum of exp(logit - most).
struct Stats {
  float most = -INFINITY, sum = 0;

  // A NaN is lost in `most` and reappears in `sum`.
  template <int kVec>
  __device__ void add(const float (&x)[kVec]) {
    float largest = most;
#pragma unroll
    for (int i = 0; i < kVec; ++i) largest = fmaxf(largest, x[i]);
    if (largest > most) {
      sum *= exp2_fast((most - largest) * kLog2E);
      most = largest;
    }
    const float base = most > -INFINITY ? most * kLog2E : 0.0f;  // -inf - -inf would be NaN
    float part = 0;
#pragma unroll
    for (int i = 0; i < kVec; ++i) part += exp2_fast(fmaf(x[i], kLog2E, -base));
    sum += part;
  }

  // Combines the block's statistics; every thread gets the result.
  __device__ void combine(float* shared) {
    const float row_most = block_max<kThreads>(most, shared);
    sum = block_sum<kThreads>(most > -INFINITY ? sum * exp2_fast((most - row_most) * kLog2E) : sum, shared);
    most = row_most;
  }
};

// Adds columns [begin, end) of the row; packs are counted from `begin`.
template <class T, int kVec, class Cap>
__device__ void add_columns(Stats& stats, const T* row, int begin, int end, const Cap& cap) {
  const int whole = end - (end - begin) % kVec;
#pragma unroll 2
  for (int at = begin + static_cast<int>(threadIdx.x) * kVec; at < whole; at += kThreads * kVec) {
    const Pack<T, kVec> pack = load_pack<kVec>(row + at);
    float x[kVec];
#pragma unroll
    for (int i = 0; i < kVec; ++i) x[i] = cap(to_float(pack.item[i]));
    stats.add(x);
  }
  // The columns of an incomplete pack belong to the thread that is next in order.
  if (whole < end && (whole - begin) / kVec % kThreads == static_cast<int>(threadIdx.x))
    for (int at = whole; at < end; ++at) {
      const float x[1] = {cap(to_float(row[at]))};
      stats.add(x);
    }
}

// Returns the row's statistics in every thread.
template <class T, int kVec, class Cap>
__device__ Stats read_row(const T* row, const Columns& c, const Cap& cap, float* shared) {
  Stats stats;
  add_columns<T, kVec>(stats, row, 0, c.columns, cap);
  stats.combine(shared);
  return stats;
}

template <class T, int kVec, class Cap>
__global__ void stats_kernel(float* stats, const T* logits, const int32_t* targets, Columns c, Cap cap) {
  __shared__ float reduce[kThreads / 32];
  const T* row = logits + blockIdx.x * int64_t{c.stride};
  const Stats found = read_row<T, kVec>(row, c, cap, reduce);
  if (threadIdx.x != 0) return;
  const int target = c.own(targets[blockIdx.x]);
  float* out = stats + blockIdx.x * int64_t{3};
  out[0] = found.most;
  out[1] = found.sum;
  out[2] = target >= 0 ? cap(to_float(row[target])) : -INFINITY;
}

// logits <- (softmax · (1 + 2 z_loss lse) - onehot) · grad_scale, times the softcap's derivative, zero in padding.
// `from` is the row, or its copy in shared memory.
template <class T, int kVec, class Cap>
__device__ void write_gradient(T* row, const T* from, const Columns& c, int target, float lse, float grad_scale,
                               float z_loss, const Cap& cap) {
  const float scale = z_loss == 0.0f ? grad_scale : grad_scale * (1.0f + 2.0f * z_loss * lse);
  // softmax · |scale| = 2^(x · log2(e) + shift): the exponent absorbs the factor.
  const float shift = log2f(fabsf(scale)) - lse * kLog2E, sign = scale < 0.0f ? -1.0f : 1.0f;
  const auto derivative = [&](float logit) { return sign * exp2_fast(fmaf(logit, kLog2E, shift)); };
  const int whole = c.columns - c.columns % kVec;
#pragma unroll 2
  for (int at = static_cast<int>(threadIdx.x) * kVec; at < whole; at += kThreads * kVec) {
    Pack<T, kVec> pack = load_pack<kVec>(from + at);
    float logit[kVec], value[kVec];
#pragma unroll
    for (int i = 0; i < kVec; ++i) {
      logit[i] = cap(to_float(pack.item[i]));
      value[i] = derivative(logit[i]);
    }
    if (static_cast<unsigned>(target - at) < static_cast<unsigned>(kVec))
#pragma unroll
      for (int i = 0; i < kVec; ++i)
        if (at + i == target) value[i] -= grad_scale;
#pragma unroll
    for (int i = 0; i < kVec; ++i) pack.item[i] = from_float<T>(cap.chain(value[i], logit[i]));
    store_pack(row + at, pack);
  }
  for (int at = whole + static_cast<int>(threadIdx.x); at < c.stride; at += kThreads) {
    const float logit = at >= c.columns ? 0.0f : cap(to_float(from[at]));
    const float value = derivative(logit) - (at == target ? grad_scale : 0.0f);
    row[at] = from_float<T>(at >= c.columns ? 0.0f : cap.chain(value, logit));
  }
}

template <class T, class Cap>
struct Loss {
  float* row_losses;
  T* logits;
  const float* stats;  // (tp, R, 3); null: this rank has the full vocabulary
  const int32_t* targets;
  int tp;
  bool gradient;
  float grad_scale, z_loss;
  Cap cap;

  // A row without a target adds nothing to the loss, and its gradient is zero.
  __device__ bool counts(int64_t row) const { return targets[row] != kNoTarget; }
  __device__ float row_scale(int64_t row) const { return counts(row) ? grad_scale : 0.0f; }
};

// Computes the loss from the statistics of all tp ranks.
template <class T, int kVec, class Cap>
__global__ void split_loss_kernel(Loss<T, Cap> a, Columns c) {
  __shared__ float s_lse;
  const int64_t r = blockIdx.x, rows = gridDim.x;
  if (threadIdx.x == 0) {
    float most = -INFINITY, sum = 0, target = -INFINITY;
    for (int k = 0; k < a.tp; ++k) most = fmaxf(most, a.stats[(k * rows + r) * 3]);
    for (int k = 0; k < a.tp; ++k) {
      const float* part = a.stats + (k * rows + r) * 3;
      if (part[0] > -INFINITY) sum += part[1] * expf(part[0] - most);
      if (part[1] != part[1]) sum = part[1];
      target = fmaxf(target, part[2]);
    }
    s_lse = most + logf(sum);
    a.row_losses[r] = a.counts(r) ? s_lse - target : 0.0f;
  }
  __syncthreads();
  T* row = a.logits + r * c.stride;
  if (a.gradient) write_gradient<T, kVec>(row, row, c, c.own(a.targets[r]), s_lse, a.row_scale(r), a.z_loss, a.cap);
}

template <class T, int kVec, class Cap>
__global__ void __launch_bounds__(kThreads) full_loss_kernel(Loss<T, Cap> a, Columns c) {
  __shared__ float reduce[kThreads / 32];
  T* row = a.logits + blockIdx.x * int64_t{c.stride};
  const int target = c.own(a.targets[blockIdx.x]);
  const float target_logit = target >= 0 ? a.cap(to_float(row[target])) : -INFINITY;
  const Stats found =
      read_row<T, kVec>(row, c, a.cap, reduce);  // its barriers ensure that the target's logit has been read
  const float lse = found.most + logf(found.sum);
  if (threadIdx.x == 0) a.row_losses[blockIdx.x] = a.counts(blockIdx.x) ? lse - target_logit : 0.0f;
  if (a.gradient) write_gradient<T, kVec>(row, row, c, target, lse, a.row_scale(blockIdx.x), a.z_loss, a.cap);
}

// Barriers of a cluster (sm_90 and later); on earlier GPUs a cluster is one block.
__device__ __forceinline__ void cluster_arrive() {
#if __CUDA_ARCH__ >= 900
  asm volatile("barrier.cluster.arrive;" ::: "memory");
#endif
}
__device__ __forceinline__ void cluster_wait() {
#if __CUDA_ARCH__ >= 900
  asm volatile("barrier.cluster.wait;" ::: "memory");
#endif
}
// Returns the value that block `block` of the cluster has at the address of `mine`.
__device__ __forceinline__ float load_cluster(const float* mine, int block) {
  float value = *mine;
#if __CUDA_ARCH__ >= 900
  uint32_t at;
  asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(at) : "r"(shared_address(mine)), "r"(block));
  asm volatile("ld.shared::cluster.f32 %0, [%1];" : "=f"(value) : "r"(at) : "memory");
#endif
  return value;
}

// Combines the statistics of all blocks of a cluster in block order, so each block gets equal bits. A block may
// continue while others still read its `own`, but must not exit before cluster_wait().
__device__ Stats combine_cluster(const Stats& stats, int blocks, float (&own)[2]) {
  if (threadIdx.x == 0) own[0] = stats.most, own[1] = stats.sum;
  cluster_arrive();
  cluster_wait();  // all statistics are published, and the target's logit has been read
  Stats all;
  for (int block = 0; block < blocks; ++block) all.most = fmaxf(all.most, load_cluster(&own[0], block));
  for (int block = 0; block < blocks; ++block) {
    const float most = load_cluster(&own[0], block), sum = load_cluster(&own[1], block);
    all.sum += most > -INFINITY ? sum * exp2_fast((most - all.most) * kLog2E) : sum;
  }
  cluster_arrive();
  return all;
}

// The row is staged in shared memory in kParts parts. Each of a cluster's `blocks` has `share` of the row's columns.
constexpr int kParts = 4;

template <class T, int kVec, class Cap>
__global__ void __launch_bounds__(kThreads, 2)
    staged_loss_kernel(Loss<T, Cap> a, Columns whole, int blocks, int share) {
  static_assert(kVec * sizeof(T) == 16);
  extern __shared__ __align__(16) unsigned char memory[];
  __shared__ float reduce[kThreads / 32], own[2];
  T* copy = reinterpret_cast<T*>(memory);  // (share)
  const int64_t r = blockIdx.x / blocks;
  const int block = static_cast<int>(blockIdx.x % blocks), begin = block * share;
  const Columns c = whole.part(begin, share);
  T* row = a.logits + r * whole.stride + begin;
  // Parts begin at a thread's first pack, so that each thread reads only what it has fetched itself.
  constexpr int kRound = kThreads * kVec;
  const int part = (c.columns + kParts * kRound - 1) / (kParts * kRound) * kRound;
  for (int p = 0; p < kParts; ++p) {
    const int end = min((p + 1) * part, c.columns);
    for (int at = p * part + static_cast<int>(threadIdx.x) * kVec; at < end; at += kRound)
      copy_async16(shared_address(copy + at), row + at, true);
    copy_async_commit();
  }
  const int target = c.own(a.targets[r]);  // among this block's columns
  // The block that has the target's column writes the row's loss; the first block does if the row has no target.
  const bool writes_loss = target >= 0 || (block == 0 && whole.own(a.targets[r]) < 0);
  const float target_logit = threadIdx.x == 0 && target >= 0 ? a.cap(to_float(row[target])) : -INFINITY;
  Stats stats;
  const auto add_part = [&](int p) {
    add_columns<T, kVec>(stats, copy, min(p * part, c.columns), min((p + 1) * part, c.columns), a.cap);
  };
  static_assert(kParts == 4);
  copy_async_wait<3>(), add_part(0);
  copy_async_wait<2>(), add_part(1);
  copy_async_wait<1>(), add_part(2);
  copy_async_wait<0>(), add_part(3);
  stats.combine(reduce);
  if (blocks > 1) stats = combine_cluster(stats, blocks, own);
  const float lse = stats.most + logf(stats.sum);
  if (threadIdx.x == 0 && writes_loss) a.row_losses[r] = a.counts(r) ? lse - target_logit : 0.0f;
  write_gradient<T, kVec>(row, copy, c, target, lse, a.row_scale(r), a.z_loss, a.cap);
  if (blocks > 1) cluster_wait();  // the others have read this block's statistics
}

__global__ void add_rows(float* loss, const float* row_losses, int64_t rows) {
  __shared__ double part[kThreads];
  double sum = 0;
#pragma unroll 8
  for (int64_t r = threadIdx.x; r < rows; r += kThreads) sum += row_losses[r];
  part[threadIdx.x] = sum;
  __syncthreads();
  if (threadIdx.x != 0) return;
  double total = 0;
  for (int i = 0; i < kThreads; ++i) total += part[i];
  loss[0] += static_cast<float>(total);
}

template <class Args>
Columns columns_of(const Args& a) {
  const int stride = static_cast<int>(a.logits[1]);
  return {stride, std::clamp(a.vocab - a.first_token, 0, stride), a.first_token};
}

// Launches the staged kernel over as many blocks as a row needs. Returns whether the row fits.
template <class T, int kVec, class Cap>
bool launch_staged(const Loss<T, Cap>& args, const Columns& c, unsigned rows, CudaStream& stream) {
  const size_t row_bytes = static_cast<size_t>(c.stride) * sizeof(T);
  const int blocks = static_cast<int>(ceil_div(static_cast<int64_t>(row_bytes), static_cast<int64_t>(kStagedBytes)));
  const GpuProperties& gpu = stream.context().properties();
  if (blocks > (gpu.has_clusters ? kMostBlocks : 1)) return false;
  const int share = static_cast<int>(round_up(ceil_div(c.stride, blocks), kVec));
  const size_t bytes = static_cast<size_t>(share) * sizeof(T);
  if (static_cast<int64_t>(bytes + kStaticBytes) > gpu.max_shared_bytes) return false;
  auto kernel = staged_loss_kernel<T, kVec, Cap>;
  TRI_CUDA(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(bytes)));
  cudaLaunchAttribute cluster{};
  cluster.id = cudaLaunchAttributeClusterDimension;
  cluster.val.clusterDim.x = static_cast<unsigned>(blocks);
  cluster.val.clusterDim.y = cluster.val.clusterDim.z = 1;
  cudaLaunchConfig_t launch{};
  launch.gridDim = dim3(rows * static_cast<unsigned>(blocks));
  launch.blockDim = dim3(kThreads);
  launch.dynamicSmemBytes = bytes;
  launch.stream = stream;
  launch.attrs = &cluster;
  launch.numAttrs = blocks > 1 ? 1 : 0;
  TRI_CUDA(cudaLaunchKernelEx(&launch, kernel, args, c, blocks, share));
  TRI_CUDA_LAUNCH("cross_entropy_loss");
  return true;
}

template <class T, int kVec, class Cap>
void launch_loss(const CrossEntropyLoss& a, const Cap& cap, float* row_losses, CudaStream& stream) {
  const Loss<T, Cap> args{row_losses,
                          pointer<T>(a.logits),
                          pointer<float>(a.stats),
                          pointer<int32_t>(a.targets),
                          a.stats.empty() ? 1 : static_cast<int>(a.stats[0]),
                          a.gradient == LogitGradient::kInPlace,
                          a.grad_scale,
                          a.z_loss,
                          cap};
  const auto rows = static_cast<unsigned>(a.logits[0]);
  const Columns columns = columns_of(a);
  if (!a.stats.empty()) {
    split_loss_kernel<T, kVec><<<rows, kThreads, 0, stream>>>(args, columns);
    return TRI_CUDA_LAUNCH("cross_entropy_loss");
  }
  if constexpr (kVec * sizeof(T) == 16)
    if (args.gradient && launch_staged<T, kVec>(args, columns, rows, stream)) return;
  full_loss_kernel<T, kVec><<<rows, kThreads, 0, stream>>>(args, columns);
  TRI_CUDA_LAUNCH("cross_entropy_loss");
}

}  // namespace

void cross_entropy_stats(const CrossEntropyStats& a, CudaStream& stream) {
  if (a.logits.numel() == 0) return;
  dispatch(a.logits.dtype, [&](auto type) {
    using T = decltype(type);
    with_flag(a.softcap > 0, [&](auto is_capped) {
      const auto cap = softcap_of<decltype(is_capped)::value>(a.softcap);
      using Cap = std::remove_const_t<decltype(cap)>;
      auto kernel =
          aligned<T>(a.logits[1], {a.logits}) ? stats_kernel<T, Pack<T>::kSize, Cap> : stats_kernel<T, 1, Cap>;
      kernel<<<static_cast<unsigned>(a.logits[0]), kThreads, 0, stream>>>(
          pointer<float>(a.stats), pointer<T>(a.logits), pointer<int32_t>(a.targets), columns_of(a), cap);
    });
  });
  TRI_CUDA_LAUNCH("cross_entropy_stats");
}

void cross_entropy_loss(const CrossEntropyLoss& a, CudaStream& stream) {
  const int64_t rows = a.logits[0];
  if (a.logits.numel() == 0) return;
  auto* row_losses =
      static_cast<float*>(workspace(stream, Scratch::kRowLosses, static_cast<size_t>(rows) * sizeof(float)));
  dispatch(a.logits.dtype, [&](auto type) {
    using T = decltype(type);
    with_flag(a.softcap > 0, [&](auto is_capped) {
      const auto cap = softcap_of<decltype(is_capped)::value>(a.softcap);
      aligned<T>(a.logits[1], {a.logits}) ? launch_loss<T, Pack<T>::kSize>(a, cap, row_losses, stream)
                                          : launch_loss<T, 1>(a, cap, row_losses, stream);
    });
  });
  add_rows<<<1, kThreads, 0, stream>>>(pointer<float>(a.loss), row_losses, rows);
  TRI_CUDA_LAUNCH("cross_entropy_loss");
}

}  // namespace tri::cuda
