// Vocabulary-parallel cross-entropy: formulas in kernels/cross_entropy.h.
//   logits (R, Vl) bf16|f32, in place; stats (R, 3) f32, gathered (tp, R, 3)
// Mapping: a block of 512 threads a row, sixteen bytes a load where rows are aligned. A thread keeps a running maximum
// and sum over its columns. With the full vocabulary on this rank one kernel does it all. Where two rows fit into a
// multiprocessor's shared memory, a block keeps its row there (cp.async, each thread its own packs, statistics taken
// while the rest is on its way) and the two blocks of a multiprocessor fill each other's waits. Wider rows (LLaMA 3)
// stream through a cluster's shared memory (cross_entropy_streamed.cu); without clusters they are read a second time.
// The row's loss goes to scratch, and one block adds the rows in a fixed order.
// Bound: memory; R·Vl elements read and written, and read once more when the vocabulary is split.
// Mirror: kernels/cpu/cross_entropy.cpp.
#include <algorithm>

#include "kernels/core/dims.h"
#include "kernels/cuda/check.h"
#include "kernels/cuda/context.h"
#include "kernels/cuda/cross_entropy.cuh"
#include "kernels/cuda/dispatch.h"
#include "kernels/cuda/mma.cuh"
#include "kernels/cuda/ops.h"

namespace tri::cuda {
namespace {

using namespace cross_entropy;

constexpr size_t kStagedBytes = 112 * 1024;  // of a row, a block: half of a multiprocessor's shared memory

// The row's statistics, in every thread.
template <class T, int kVec>
__device__ Stats read_row(const T* row, const Columns& c, float* shared) {
  Stats stats;
  add_columns<T, kVec>(stats, row, 0, c.columns);
  stats.combine(shared);
  return stats;
}

template <class T, int kVec>
__global__ void stats_kernel(float* stats, const T* logits, const int32_t* targets, Columns c) {
  __shared__ float reduce[kThreads / 32];
  const T* row = logits + blockIdx.x * int64_t{c.stride};
  const Stats found = read_row<T, kVec>(row, c, reduce);
  if (threadIdx.x != 0) return;
  const int target = c.own(targets[blockIdx.x]);
  float* out = stats + blockIdx.x * int64_t{3};
  out[0] = found.most;
  out[1] = found.sum;
  out[2] = target >= 0 ? to_float(row[target]) : -INFINITY;
}

// From the statistics of all tp ranks.
template <class T, int kVec>
__global__ void split_loss_kernel(Loss<T> a, Columns c) {
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
    a.row_losses[r] = s_lse - target;
  }
  __syncthreads();
  T* row = a.logits + r * c.stride;
  if (a.gradient) write_gradient<T, kVec>(row, row, c, c.own(a.targets[r]), s_lse, a.grad_scale);
}

template <class T, int kVec>
__global__ void __launch_bounds__(kThreads) full_loss_kernel(Loss<T> a, Columns c) {
  __shared__ float reduce[kThreads / 32];
  T* row = a.logits + blockIdx.x * int64_t{c.stride};
  const int target = c.own(a.targets[blockIdx.x]);
  const float target_logit = target >= 0 ? to_float(row[target]) : -INFINITY;
  const Stats found = read_row<T, kVec>(row, c, reduce);  // its barriers: the target's logit was read
  const float lse = found.most + logf(found.sum);
  if (threadIdx.x == 0) a.row_losses[blockIdx.x] = lse - target_logit;
  if (a.gradient) write_gradient<T, kVec>(row, row, c, target, lse, a.grad_scale);
}

// The row in shared memory, fetched in kParts parts.
constexpr int kParts = 4;

template <class T, int kVec>
__global__ void __launch_bounds__(kThreads, 2) staged_loss_kernel(Loss<T> a, Columns c) {
  static_assert(kVec * sizeof(T) == 16);
  extern __shared__ __align__(16) unsigned char memory[];
  __shared__ float reduce[kThreads / 32];
  T* copy = reinterpret_cast<T*>(memory);  // (Vl)
  T* row = a.logits + blockIdx.x * int64_t{c.stride};
  // Parts begin at a thread's first pack, so that every thread reads what itself has fetched.
  constexpr int kRound = kThreads * kVec;
  const int part = (c.columns + kParts * kRound - 1) / (kParts * kRound) * kRound;
  for (int p = 0; p < kParts; ++p) {
    const int end = min((p + 1) * part, c.columns);
    for (int at = p * part + static_cast<int>(threadIdx.x) * kVec; at < end; at += kRound)
      copy_async16(shared_address(copy + at), row + at, true);
    copy_async_commit();
  }
  const int target = c.own(a.targets[blockIdx.x]);
  const float target_logit = threadIdx.x == 0 && target >= 0 ? to_float(row[target]) : -INFINITY;
  Stats stats;
  const auto add_part = [&](int p) {
    add_columns<T, kVec>(stats, copy, min(p * part, c.columns), min((p + 1) * part, c.columns));
  };
  static_assert(kParts == 4);
  copy_async_wait<3>(), add_part(0);
  copy_async_wait<2>(), add_part(1);
  copy_async_wait<1>(), add_part(2);
  copy_async_wait<0>(), add_part(3);
  stats.combine(reduce);  // its barriers: the target's logit was read
  const float lse = stats.most + logf(stats.sum);
  if (threadIdx.x == 0) a.row_losses[blockIdx.x] = lse - target_logit;
  write_gradient<T, kVec>(row, copy, c, target, lse, a.grad_scale);
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

// False, and nothing is done, where a row does not fit.
template <class T, int kVec>
bool launch_staged(const Loss<T>& args, const Columns& c, unsigned rows, CudaStream& stream) {
  const size_t bytes = static_cast<size_t>(c.stride) * sizeof(T);
  if (bytes > kStagedBytes ||
      static_cast<int64_t>(bytes + sizeof(float) * kThreads / 32) > stream.context().properties().max_shared_bytes)
    return false;
  auto kernel = staged_loss_kernel<T, kVec>;
  TRI_CUDA(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(bytes)));
  kernel<<<rows, kThreads, bytes, stream>>>(args, c);
  TRI_CUDA_LAUNCH("cross_entropy_loss");
  return true;
}

template <class T, int kVec>
void launch_loss(const CrossEntropyLoss& a, float* row_losses, CudaStream& stream) {
  const Loss<T> args{row_losses,
                     pointer<T>(a.logits),
                     pointer<float>(a.stats),
                     pointer<int32_t>(a.targets),
                     a.stats.empty() ? 1 : static_cast<int>(a.stats[0]),
                     a.gradient == LogitGradient::kInPlace,
                     a.grad_scale};
  const auto rows = static_cast<unsigned>(a.logits[0]);
  const Columns columns = columns_of(a);
  if (!a.stats.empty()) {
    split_loss_kernel<T, kVec><<<rows, kThreads, 0, stream>>>(args, columns);
    return TRI_CUDA_LAUNCH("cross_entropy_loss");
  }
  if constexpr (kVec * sizeof(T) == 16)
    if (args.gradient &&
        (launch_staged<T, kVec>(args, columns, rows, stream) || launch_streamed<T>(args, columns, rows, stream)))
      return;
  full_loss_kernel<T, kVec><<<rows, kThreads, 0, stream>>>(args, columns);
  TRI_CUDA_LAUNCH("cross_entropy_loss");
}

}  // namespace

void cross_entropy_stats(const CrossEntropyStats& a, CudaStream& stream) {
  if (a.logits.numel() == 0) return;
  dispatch(a.logits.dtype, [&](auto type) {
    using T = decltype(type);
    auto kernel = aligned<T>(a.logits[1], {a.logits}) ? stats_kernel<T, Pack<T>::kSize> : stats_kernel<T, 1>;
    kernel<<<static_cast<unsigned>(a.logits[0]), kThreads, 0, stream>>>(pointer<float>(a.stats), pointer<T>(a.logits),
                                                                        pointer<int32_t>(a.targets), columns_of(a));
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
    aligned<T>(a.logits[1], {a.logits}) ? launch_loss<T, Pack<T>::kSize>(a, row_losses, stream)
                                        : launch_loss<T, 1>(a, row_losses, stream);
  });
  add_rows<<<1, kThreads, 0, stream>>>(pointer<float>(a.loss), row_losses, rows);
  TRI_CUDA_LAUNCH("cross_entropy_loss");
}

}  // namespace tri::cuda
