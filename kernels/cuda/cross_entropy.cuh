// What the kernels of vocabulary-parallel cross-entropy share; formulas in kernels/cross_entropy.h, the choice between
// them in cross_entropy.cu.
#pragma once

#include <cstdint>

#include "kernels/cuda/device_math.cuh"
#include "kernels/cuda/reduce.cuh"
#include "kernels/cuda/stream.h"

namespace tri::cuda::cross_entropy {

constexpr int kThreads = 512;  // a block, that compute

// This rank's part of the vocabulary.
struct Columns {
  int stride;   // Vl
  int columns;  // of them that are no padding
  int first_token;
  __device__ int own(int32_t target) const {  // the target's column here, or -1
    const int column = target - first_token;
    return column >= 0 && column < columns ? column : -1;
  }
  // Of a row's columns [begin, begin + count).
  __device__ Columns part(int begin, int count) const {
    return {min(stride - begin, count), max(0, min(columns - begin, count)), first_token + begin};
  }
};

// Of a row or a part of it: the largest logit, and the sum of exp(logit - most).
struct Stats {
  float most = -INFINITY, sum = 0;

  // NaN is lost in `most` and comes back in `sum`.
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

  // Over the block, in every thread.
  __device__ void combine(float* shared) {
    const float row_most = block_max<kThreads>(most, shared);
    sum = block_sum<kThreads>(of(row_most), shared);
    most = row_most;
  }

  // The sum where `row_most` is the largest logit.
  __device__ float of(float row_most) const {
    return most > -INFINITY ? sum * exp2_fast((most - row_most) * kLog2E) : sum;
  }
};

// Adds columns [begin, end) of the row; packs are counted from `begin`.
template <class T, int kVec>
__device__ void add_columns(Stats& stats, const T* row, int begin, int end) {
  const int whole = end - (end - begin) % kVec;
#pragma unroll 2
  for (int at = begin + static_cast<int>(threadIdx.x) * kVec; at < whole; at += kThreads * kVec) {
    const Pack<T, kVec> pack = load_pack<kVec>(row + at);
    float x[kVec];
#pragma unroll
    for (int i = 0; i < kVec; ++i) x[i] = to_float(pack.item[i]);
    stats.add(x);
  }
  // The columns of an incomplete pack: the thread whose turn it is.
  if (whole < end && (whole - begin) / kVec % kThreads == static_cast<int>(threadIdx.x))
    for (int at = whole; at < end; ++at) {
      const float x[1] = {to_float(row[at])};
      stats.add(x);
    }
}

// logits <- (softmax - onehot) · grad_scale, zero in padding. `from`: the row, or its copy in shared memory.
template <class T, int kVec>
__device__ void write_gradient(T* row, const T* from, const Columns& c, int target, float lse, float grad_scale) {
  // softmax · |scale| = 2^(x · log2(e) + shift): the factor goes into the exponent.
  const float shift = log2f(fabsf(grad_scale)) - lse * kLog2E, sign = grad_scale < 0.0f ? -1.0f : 1.0f;
  const auto derivative = [&](T logit) { return sign * exp2_fast(fmaf(to_float(logit), kLog2E, shift)); };
  const int whole = c.columns - c.columns % kVec;
#pragma unroll 2
  for (int at = static_cast<int>(threadIdx.x) * kVec; at < whole; at += kThreads * kVec) {
    Pack<T, kVec> pack = load_pack<kVec>(from + at);
    float value[kVec];
#pragma unroll
    for (int i = 0; i < kVec; ++i) value[i] = derivative(pack.item[i]);
    if (static_cast<unsigned>(target - at) < static_cast<unsigned>(kVec))
#pragma unroll
      for (int i = 0; i < kVec; ++i)
        if (at + i == target) value[i] -= grad_scale;
#pragma unroll
    for (int i = 0; i < kVec; ++i) pack.item[i] = from_float<T>(value[i]);
    store_pack(row + at, pack);
  }
  for (int at = whole + static_cast<int>(threadIdx.x); at < c.stride; at += kThreads)
    row[at] = from_float<T>(at >= c.columns ? 0.0f : derivative(from[at]) - (at == target ? grad_scale : 0.0f));
}

template <class T>
struct Loss {
  float* row_losses;
  T* logits;
  const float* stats;  // (tp, R, 3); null: the full vocabulary is here
  const int32_t* targets;
  int tp;
  bool gradient;
  float grad_scale;
};

// The full vocabulary, rows too wide for one block to keep (cross_entropy_streamed.cu). False, and nothing is done,
// where the GPU has no clusters or the row is beyond what one keeps. T float or bf16; rows of whole 16-byte packs.
template <class T>
bool launch_streamed(const Loss<T>& args, const Columns& c, unsigned rows, CudaStream& stream);

}  // namespace tri::cuda::cross_entropy
