// Vocabulary-parallel cross-entropy: formulas in kernels/cross_entropy.h.
//   logits (R, Vl) bf16|f32, in place; stats (R, 3) f32, gathered (tp, R, 3)
// Mapping: a block of 512 threads a row, 16-byte loads where rows are aligned. Stats: one online pass (each thread
// keeps a running maximum and sum). Loss: the tp statistics are combined once a block; the row's loss goes to scratch,
// and one block adds the rows in a fixed order.  Bound: memory; R·Vl elements read for the stats, read and written for
// the loss. Mirror: kernels/cpu/cross_entropy.cpp.
#include <algorithm>

#include "kernels/cuda/dispatch.h"
#include "kernels/cuda/ops.h"
#include "kernels/cuda/reduce.cuh"

namespace tri::cuda {
namespace {

constexpr int kThreads = 512;

// Calls f(column, value) for this thread's columns of [0, columns), packs first.
template <class T, class F>
__device__ void for_each_column(const T* row, int64_t columns, bool packed, F f) {
  constexpr int kPack = Pack<T>::kSize;
  const int64_t packs = packed ? columns / kPack : 0;
  for (int64_t p = threadIdx.x; p < packs; p += kThreads) {
    const Pack<T> pack = load_pack(row + p * kPack);
#pragma unroll
    for (int i = 0; i < kPack; ++i) f(p * kPack + i, to_float(pack.item[i]));
  }
  for (int64_t c = packs * kPack + threadIdx.x; c < columns; c += kThreads) f(c, to_float(row[c]));
}

// `columns`: those that exist of this rank's `stride`.
template <class T>
__global__ void stats_kernel(float* stats, const T* logits, const int32_t* targets, int64_t stride, int64_t columns,
                             int first_token, bool packed) {
  __shared__ float reduce[kThreads / 32];
  const T* row = logits + blockIdx.x * stride;
  float most = -INFINITY, sum = 0;
  for_each_column(row, columns, packed, [&](int64_t, float x) {
    if (x > most) {
      sum = sum * __expf(most - x) + 1.0f;
      most = x;
    } else if (x == x && most > -INFINITY) {
      sum += __expf(x - most);
    } else if (x != x) {
      sum = x;  // NaN carries through
    }
  });
  const float row_most = block_max<kThreads>(most, reduce);
  const float scaled = sum != sum ? sum : (most > -INFINITY ? sum * __expf(most - row_most) : 0.0f);
  const float row_sum = block_sum<kThreads>(scaled, reduce);
  if (threadIdx.x != 0) return;
  const int64_t target = targets[blockIdx.x] - first_token;
  float* out = stats + blockIdx.x * 3;
  out[0] = row_most;
  out[1] = row_sum;
  out[2] = target >= 0 && target < columns ? to_float(row[target]) : -INFINITY;
}

template <class T>
__global__ void loss_kernel(float* row_losses, T* logits, const float* stats, const int32_t* targets, int tp,
                            int64_t stride, int64_t columns, int first_token, bool packed, bool gradient,
                            float grad_scale) {
  __shared__ float s_lse;
  const int64_t r = blockIdx.x, rows = gridDim.x;
  if (threadIdx.x == 0) {
    float most = -INFINITY, sum = 0, target = -INFINITY;
    for (int k = 0; k < tp; ++k) most = fmaxf(most, stats[(k * rows + r) * 3]);
    for (int k = 0; k < tp; ++k) {
      const float* part = stats + (k * rows + r) * 3;
      if (part[0] > -INFINITY) sum += part[1] * expf(part[0] - most);
      if (part[1] != part[1]) sum = part[1];
      target = fmaxf(target, part[2]);
    }
    s_lse = most + logf(sum);
    row_losses[r] = s_lse - target;
  }
  __syncthreads();
  if (!gradient) return;
  const float lse = s_lse;
  const int64_t target = targets[r] - first_token;
  T* row = logits + r * stride;
  const auto derivative = [&](int64_t c, float x) {
    const float softmax = __expf(x - lse);
    return c < columns ? (softmax - (c == target ? 1.0f : 0.0f)) * grad_scale : 0.0f;
  };
  constexpr int kPack = Pack<T>::kSize;
  const int64_t packs = packed ? stride / kPack : 0;
  for (int64_t p = threadIdx.x; p < packs; p += kThreads) {
    Pack<T> pack = load_pack(row + p * kPack);
#pragma unroll
    for (int i = 0; i < kPack; ++i) pack.item[i] = from_float<T>(derivative(p * kPack + i, to_float(pack.item[i])));
    store_pack(row + p * kPack, pack);
  }
  for (int64_t c = packs * kPack + threadIdx.x; c < stride; c += kThreads)
    row[c] = from_float<T>(derivative(c, to_float(row[c])));
}

__global__ void add_rows(float* loss, const float* row_losses, int64_t rows) {
  __shared__ double part[kThreads];
  double sum = 0;
  for (int64_t r = threadIdx.x; r < rows; r += kThreads) sum += row_losses[r];
  part[threadIdx.x] = sum;
  __syncthreads();
  if (threadIdx.x != 0) return;
  double total = 0;
  for (int i = 0; i < kThreads; ++i) total += part[i];
  loss[0] += static_cast<float>(total);
}

// Columns of this rank's share that are no padding.
int64_t real_columns(int64_t stride, int vocab, int first_token) {
  return std::clamp<int64_t>(int64_t{vocab} - first_token, 0, stride);
}

template <class T>
bool rows_aligned(const Tensor& logits) {
  return reinterpret_cast<uintptr_t>(logits.data) % 16 == 0 && logits[1] * static_cast<int64_t>(sizeof(T)) % 16 == 0;
}

}  // namespace

void cross_entropy_stats(const CrossEntropyStats& a, cudaStream_t stream) {
  if (a.logits.numel() == 0) return;
  dispatch(a.logits.dtype, [&](auto type) {
    using T = decltype(type);
    stats_kernel<T><<<static_cast<unsigned>(a.logits[0]), kThreads, 0, stream>>>(
        pointer<float>(a.stats), pointer<T>(a.logits), pointer<int32_t>(a.targets), a.logits[1],
        real_columns(a.logits[1], a.vocab, a.first_token), a.first_token, rows_aligned<T>(a.logits));
  });
  TRI_CUDA_LAUNCH("cross_entropy_stats");
}

void cross_entropy_loss(const CrossEntropyLoss& a, cudaStream_t stream) {
  const int64_t rows = a.logits[0];
  if (a.logits.numel() == 0) return;
  auto* row_losses =
      static_cast<float*>(workspace(stream, Scratch::kRowLosses, static_cast<size_t>(rows) * sizeof(float)));
  dispatch(a.logits.dtype, [&](auto type) {
    using T = decltype(type);
    loss_kernel<T><<<static_cast<unsigned>(rows), kThreads, 0, stream>>>(
        row_losses, pointer<T>(a.logits), pointer<float>(a.stats), pointer<int32_t>(a.targets),
        static_cast<int>(a.stats[0]), a.logits[1], real_columns(a.logits[1], a.vocab, a.first_token), a.first_token,
        rows_aligned<T>(a.logits), a.gradient == LogitGradient::kInPlace, a.grad_scale);
  });
  add_rows<<<1, kThreads, 0, stream>>>(pointer<float>(a.loss), row_losses, rows);
  TRI_CUDA_LAUNCH("cross_entropy_loss");
}

}  // namespace tri::cuda
