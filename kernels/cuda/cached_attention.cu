// Attention of new tokens against a cache: formulas in kernels/cached_attention.h.
// Mapping: one block per row copies its key and value to the cache. Then one block per (row, query head) processes the
// band in tiles of kThreads keys with an online softmax: a thread computes the score of one key, and then adds the
// tile's values to a few elements of the output. It uses no tensor cores.
// Limit: head sizes up to kMaxPerThread · kThreads.  Bound: memory, the band's keys and values once per query head.
// Reference: kernels/cpu/cached_attention.cpp.
#include "kernels/cached_attention.h"

#include "kernels/cuda/dispatch.h"
#include "kernels/cuda/ops.h"
#include "kernels/cuda/reduce.cuh"

namespace tri::cuda {
namespace {

constexpr int kThreads = 128;
constexpr int kMaxPerThread = 8;  // elements of the output per thread
static_assert(kMaxPerThread * kThreads == kCachedAttentionMaxHeadSize);

struct Shape {
  int kv_heads, group, head_size, window, slots;
  float scale, softcap;
  QkvRow row;

  // Returns the index of the first element of a slot's key or value.
  __device__ int64_t slot_at(int sequence, int position, int kv) const {
    return (int64_t{sequence} * slots + position % slots) * kv_heads * head_size + int64_t{kv} * head_size;
  }
};

template <class T>
__global__ void store_kernel(T* keys, T* values, const T* qkv, const int32_t* sequences, const int32_t* positions,
                             Shape d) {
  const int64_t r = blockIdx.x;
  if (sequences[r] < 0) return;
  const int64_t to = d.slot_at(sequences[r], positions[r], 0);
  const T* from = qkv + r * d.row.width;
  for (int i = static_cast<int>(threadIdx.x); i < d.kv_heads * d.head_size; i += kThreads) {
    const int kv = i / d.head_size, c = i % d.head_size;
    keys[to + i] = from[d.row.key(kv) + c];
    values[to + i] = from[d.row.value(kv) + c];
  }
}

// kCapped: with the softcap.
template <class T, bool kCapped>
__global__ void __launch_bounds__(kThreads) attend_kernel(T* out, const T* keys, const T* values, const T* qkv,
                                                          const int32_t* sequences, const int32_t* positions, Shape d) {
  extern __shared__ float query[];  // (HS)
  __shared__ float weights[kThreads];
  __shared__ float reduce[kThreads / 32];
  const int64_t r = blockIdx.x;
  const int head = static_cast<int>(blockIdx.y), kv = head / d.group, thread = static_cast<int>(threadIdx.x);
  const int sequence = sequences[r], last = positions[r];
  out += (r * d.kv_heads * d.group + head) * d.head_size;
  if (sequence < 0) {
    for (int c = thread; c < d.head_size; c += kThreads) out[c] = from_float<T>(0.0f);
    return;
  }
  const T* from = qkv + r * d.row.width + d.row.query(kv, head % d.group);
  for (int c = thread; c < d.head_size; c += kThreads) query[c] = to_float(from[c]);
  __syncthreads();
  float most = -INFINITY, total = 0, sum[kMaxPerThread] = {};
  const int first = d.window == 0 || last < d.window ? 0 : last - d.window + 1;
  for (int tile = first; tile <= last; tile += kThreads) {
    const int count = min(kThreads, last - tile + 1);
    float score = -INFINITY;
    if (thread < count) {
      const T* key = keys + d.slot_at(sequence, tile + thread, kv);
      score = 0;
      for (int c = 0; c < d.head_size; ++c) score += query[c] * to_float(key[c]);
      score *= d.scale;
      if constexpr (kCapped) score = d.softcap * tanhf(score / d.softcap);
    }
    const float larger = fmaxf(most, block_max<kThreads>(score, reduce));
    const float weight = thread < count ? expf(score - larger) : 0.0f, rescale = expf(most - larger);
    weights[thread] = weight;
    total = total * rescale + block_sum<kThreads>(weight, reduce);  // its barriers also publish the weights
    most = larger;
#pragma unroll
    for (int n = 0; n < kMaxPerThread; ++n) {
      const int c = thread + n * kThreads;
      if (c >= d.head_size) break;
      sum[n] *= rescale;
      for (int s = 0; s < count; ++s) sum[n] += weights[s] * to_float(values[d.slot_at(sequence, tile + s, kv) + c]);
    }
    __syncthreads();  // the next tile overwrites the weights
  }
#pragma unroll
  for (int n = 0; n < kMaxPerThread; ++n) {
    const int c = thread + n * kThreads;
    if (c < d.head_size) out[c] = from_float<T>(sum[n] / total);
  }
}

}  // namespace

void cached_attention(const CachedAttention& a, CudaStream& stream) {
  const int head_size = static_cast<int>(a.keys[2] / a.num_kv_heads);
  const Shape d{.kv_heads = a.num_kv_heads,
                .group = a.group,
                .head_size = head_size,
                .window = a.window,
                .slots = static_cast<int>(a.keys[1]),
                .scale = a.scale,
                .softcap = a.softcap,
                .row = qkv_row(a.order, a.num_kv_heads, a.group, head_size)};
  const auto rows = static_cast<unsigned>(a.qkv[0]);
  const dim3 grid(rows, static_cast<unsigned>(a.num_kv_heads * a.group));
  const size_t shared = static_cast<size_t>(head_size) * sizeof(float);
  dispatch(a.qkv.dtype, [&](auto type) {
    using T = decltype(type);
    const auto *sequences = pointer<int32_t>(a.sequences), *positions = pointer<int32_t>(a.positions);
    store_kernel<T><<<rows, kThreads, 0, stream>>>(pointer<T>(a.keys), pointer<T>(a.values), pointer<T>(a.qkv),
                                                   sequences, positions, d);
    auto attend = a.softcap > 0 ? attend_kernel<T, true> : attend_kernel<T, false>;
    attend<<<grid, kThreads, shared, stream>>>(pointer<T>(a.out), pointer<T>(a.keys), pointer<T>(a.values),
                                               pointer<T>(a.qkv), sequences, positions, d);
  });
  TRI_CUDA_LAUNCH("cached_attention");
}

}  // namespace tri::cuda
