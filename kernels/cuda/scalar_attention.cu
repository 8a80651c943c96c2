// Causal attention for any dtype, head size, group and window: formulas in kernels/attention.h.
// Mapping: forward and dq: one block per (query, head, sequence), with the band's scores in shared memory; dk, dv: one
// block per (key, key/value head, sequence), which processes the group's heads and the band's queries in a fixed order.
// It uses no tensor cores: it serves fp32 and head sizes that no other kernel supports, for correctness, not for speed.
// Limits: T · 8 bytes of shared memory (attention_path() refuses longer sequences), head sizes up to 8 · 128.
// Bound: fp32 units.  Reference: kernels/cpu/attention.cpp.
#include "kernels/cuda/attention_band.cuh"
#include "kernels/cuda/reduce.cuh"
#include "kernels/cuda/scalar_attention.h"

namespace tri::cuda {
namespace {

constexpr int kThreads = 128;
constexpr int kMaxPerThread = 8;  // head elements per thread of the dk, dv kernel

// Of the heads that a call computes; pointers are those of their first one (FirstHead).
struct Shape {
  int seq_len, kv_heads, group, row_heads, head_size;  // row_heads: of a row of out, and of a sample's statistics
  float scale, softcap;
  QkvRow row, key_row;
  Band band;

  __device__ int64_t out_row() const { return int64_t{row_heads} * head_size; }
  // Returns the index of the element that begins `head` elements into its row.
  __device__ int64_t qkv_at(int b, int t, int head) const { return (int64_t{b} * seq_len + t) * row.width + head; }
  __device__ int64_t out_at(int b, int t, int head) const {
    return (int64_t{b} * seq_len + t) * out_row() + int64_t{head} * head_size;
  }
  __device__ int64_t stat_at(int b, int t, int head) const { return (int64_t{b} * row_heads + head) * seq_len + t; }
  __device__ int64_t key_at(int b, int s, int kv) const {
    return (int64_t{b} * band.key_len + s) * key_row.width + key_row.key(kv);
  }
  __device__ int64_t value_at(int b, int s, int kv) const {
    return key_at(b, s, kv) + key_row.value_at - key_row.key_at;
  }
};

template <class T>
__device__ float dot(const T* a, const T* b, int count) {
  float sum = 0;
  for (int i = 0; i < count; ++i) sum += to_float(a[i]) * to_float(b[i]);
  return sum;
}

// The score of a query and a key. kCapped: with the softcap.
template <bool kCapped, class T>
__device__ __forceinline__ float score_of(const T* query, const T* key, const Shape& d) {
  const float score = d.scale * dot(query, key, d.head_size);
  if constexpr (kCapped) return d.softcap * tanhf(score / d.softcap);
  return score;
}

// The derivative of a capped score with respect to the score before the softcap.
__device__ __forceinline__ float slope_of(float score, const Shape& d) {
  const float ratio = score / d.softcap;
  return 1.0f - ratio * ratio;
}

template <class T, bool kCapped>
__global__ void forward_kernel(T* out, float* lse, const T* qkv, const T* keys, Shape d) {
  extern __shared__ float weights[];  // (Tk)
  __shared__ float reduce[kThreads / 32];
  const int t = blockIdx.x, head = blockIdx.y, b = blockIdx.z, kv = head / d.group;
  const int last = d.band.position(t), first = d.band.first_key(b, last);
  const T* q = qkv + d.qkv_at(b, t, d.row.query(kv, head % d.group));
  float most = -INFINITY;
  for (int s = first + threadIdx.x; s <= last; s += kThreads) {
    weights[s] = score_of<kCapped>(q, keys + d.key_at(b, s, kv), d);
    most = fmaxf(most, weights[s]);
  }
  most = block_max<kThreads>(most, reduce);
  float sum = 0;
  for (int s = first + threadIdx.x; s <= last; s += kThreads) sum += weights[s] = expf(weights[s] - most);
  sum = block_sum<kThreads>(sum, reduce);  // its barriers also publish the weights
  for (int i = threadIdx.x; i < d.head_size; i += kThreads) {
    float total = 0;
    for (int s = first; s <= last; ++s) total += weights[s] * to_float(keys[d.value_at(b, s, kv) + i]);
    out[d.out_at(b, t, head) + i] = from_float<T>(total / sum);
  }
  if (threadIdx.x == 0) lse[d.stat_at(b, t, head)] = most + logf(sum);
}

template <class T, bool kCapped>
__global__ void query_gradient_kernel(T* dqkv, float* delta, const T* dout, const T* out, const float* lse,
                                      const T* qkv, const T* keys, Shape d) {
  extern __shared__ float dscores[];  // (Tk)
  const int t = blockIdx.x, head = blockIdx.y, b = blockIdx.z, kv = head / d.group;
  const int last = d.band.position(t), first = d.band.first_key(b, last);
  const T *q = qkv + d.qkv_at(b, t, d.row.query(kv, head % d.group)), *dy = dout + d.out_at(b, t, head);
  const float own = dot(dy, out + d.out_at(b, t, head), d.head_size);
  const int64_t stat = d.stat_at(b, t, head);
  if (threadIdx.x == 0) delta[stat] = own;
  for (int s = first + threadIdx.x; s <= last; s += kThreads) {
    const T *k = keys + d.key_at(b, s, kv), *v = keys + d.value_at(b, s, kv);
    const float score = score_of<kCapped>(q, k, d), p = expf(score - lse[stat]);
    dscores[s] = p * (dot(dy, v, d.head_size) - own) * d.scale;
    if constexpr (kCapped) dscores[s] *= slope_of(score, d);
  }
  __syncthreads();
  for (int i = threadIdx.x; i < d.head_size; i += kThreads) {
    float total = 0;
    for (int s = first; s <= last; ++s) total += dscores[s] * to_float(keys[d.key_at(b, s, kv) + i]);
    dqkv[d.qkv_at(b, t, d.row.query(kv, head % d.group)) + i] = from_float<T>(total);
  }
}

template <class T, bool kCapped>
__global__ void key_value_gradient_kernel(T* dkeys, const float* delta, const T* dout, const float* lse, const T* qkv,
                                          const T* keys, Shape d) {
  extern __shared__ float shared[];
  float *weights = shared, *dscores = shared + d.seq_len;  // (T) each
  const int s = blockIdx.x, kv = blockIdx.y, b = blockIdx.z;
  const int last_position = d.band.last_position(s, d.band.document_end(b, s, d.band.key_len - 1));
  const int first = d.band.rows_before(s), end = d.band.rows_before(last_position + 1);  // rows of queries
  const T *k = keys + d.key_at(b, s, kv), *v = keys + d.value_at(b, s, kv);
  float dk[kMaxPerThread] = {}, dv[kMaxPerThread] = {};
  for (int g = 0; g < d.group; ++g) {
    const int head = kv * d.group + g;
    for (int t = first + threadIdx.x; t < end; t += kThreads) {
      const int64_t stat = d.stat_at(b, t, head);
      const float score = score_of<kCapped>(qkv + d.qkv_at(b, t, d.row.query(kv, g)), k, d);
      weights[t] = expf(score - lse[stat]);
      dscores[t] = weights[t] * (dot(dout + d.out_at(b, t, head), v, d.head_size) - delta[stat]) * d.scale;
      if constexpr (kCapped) dscores[t] *= slope_of(score, d);
    }
    __syncthreads();
#pragma unroll
    for (int n = 0; n < kMaxPerThread; ++n) {
      const int i = threadIdx.x + n * kThreads;
      if (i >= d.head_size) break;
      for (int t = first; t < end; ++t) {
        dk[n] += dscores[t] * to_float(qkv[d.qkv_at(b, t, d.row.query(kv, g)) + i]);
        dv[n] += weights[t] * to_float(dout[d.out_at(b, t, head) + i]);
      }
    }
    __syncthreads();  // the next head overwrites the weights
  }
#pragma unroll
  for (int n = 0; n < kMaxPerThread; ++n) {
    const int i = threadIdx.x + n * kThreads;
    if (i >= d.head_size) break;
    dkeys[d.key_at(b, s, kv) + i] = from_float<T>(dk[n]);
    dkeys[d.value_at(b, s, kv) + i] = from_float<T>(dv[n]);
  }
}

template <class Args>
Shape shape_of(const Args& a) {
  const QkvRow row = qkv_row_of(a);
  static_assert(kMaxPerThread * kThreads == kScalarMaxHeadSize);
  return {.seq_len = a.seq_len,
          .kv_heads = kv_heads_of(a),
          .group = a.group,
          .row_heads = a.num_kv_heads * a.group,
          .head_size = row.head_size,
          .scale = a.scale,
          .softcap = a.softcap,
          .row = row,
          .key_row = key_row_of(a),
          .band = band_of(a)};
}

template <class Kernel>
size_t shared_bytes(Kernel kernel, int floats) {
  const size_t bytes = static_cast<size_t>(floats) * sizeof(float);
  if (bytes > 40 * 1024)  // the rest of the 48 KiB that need no opt-in is for static arrays
    TRI_CUDA(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(bytes)));
  return bytes;
}

}  // namespace

void scalar_attention_forward(const AttentionForward& a, CudaStream& stream) {
  const Shape d = shape_of(a);
  const FirstHead first = first_head_of(a);
  const dim3 grid(static_cast<unsigned>(d.seq_len), static_cast<unsigned>(d.kv_heads * d.group),
                  static_cast<unsigned>(a.qkv[0] / d.seq_len));
  dispatch(a.qkv.dtype, [&](auto type) {
    using T = decltype(type);
    with_flag(a.softcap > 0, [&](auto capped) {
      auto kernel = forward_kernel<T, decltype(capped)::value>;
      kernel<<<grid, kThreads, shared_bytes(kernel, d.band.key_len), stream>>>(
          pointer<T>(a.out) + first.out, pointer<float>(a.lse) + first.stat, pointer<T>(a.qkv) + first.query,
          pointer<T>(keys_of(a)), d);
    });
  });
  TRI_CUDA_LAUNCH("attention_forward");
}

void scalar_attention_backward(const AttentionBackward& a, CudaStream& stream) {
  const Shape d = shape_of(a);
  const FirstHead first = first_head_of(a);
  float* const delta = pointer<float>(a.delta) + first.stat;
  const float* const lse = pointer<float>(a.lse) + first.stat;
  const auto batch = static_cast<unsigned>(a.qkv[0] / d.seq_len);
  const dim3 queries(static_cast<unsigned>(d.seq_len), static_cast<unsigned>(d.kv_heads * d.group), batch);
  const dim3 keys(static_cast<unsigned>(d.band.key_len), static_cast<unsigned>(d.kv_heads), batch);
  dispatch(a.qkv.dtype, [&](auto type) {
    using T = decltype(type);
    const T *qkv = pointer<T>(a.qkv) + first.query, *dout = pointer<T>(a.dout) + first.out;
    with_flag(a.softcap > 0, [&](auto capped) {
      auto query_kernel = query_gradient_kernel<T, decltype(capped)::value>;
      query_kernel<<<queries, kThreads, shared_bytes(query_kernel, d.band.key_len), stream>>>(
          pointer<T>(a.dqkv) + first.query, delta, dout, pointer<T>(a.out) + first.out, lse, qkv,
          pointer<T>(keys_of(a)), d);
      auto key_kernel = key_value_gradient_kernel<T, decltype(capped)::value>;
      key_kernel<<<keys, kThreads, shared_bytes(key_kernel, 2 * d.seq_len), stream>>>(
          pointer<T>(key_gradients_of(a)), delta, dout, lse, qkv, pointer<T>(keys_of(a)), d);
    });
  });
  TRI_CUDA_LAUNCH("attention_backward");
}

}  // namespace tri::cuda
