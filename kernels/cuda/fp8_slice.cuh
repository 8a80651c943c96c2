// Quantizes flat slices (Fp8SliceWeights in kernels/fp8.h) in the thread that has the numbers: fp8_cast_slice and the
// optimizers' updates.
#pragma once

#include "kernels/cuda/dispatch.h"
#include "kernels/cuda/fp8_cast.cuh"

namespace tri::cuda {

struct SliceWeights {
  uint8_t* out;
  const int32_t* slot;
  const float* scale;
  float* amax;
  int64_t* counts;
};

inline SliceWeights slice_weights(const Fp8SliceWeights& c) {
  return {fp8_bytes(c.out), pointer<int32_t>(c.slot), pointer<float>(c.scale), pointer<float>(c.amax),
          pointer<int64_t>(c.counts)};
}

// Quantizes a thread's numbers, which `tensor` owns; -1: padding. All threads of a block of kThreads call it, each with
// different numbers.
template <int N>
__device__ void encode_weights(const SliceWeights& quantized, int64_t first, int tensor, const float (&w)[N]) {
  Fp8Found found;
  const int slot = tensor < 0 ? -1 : quantized.slot[tensor];
  if (slot >= 0) {
    const float scale = quantized.scale[slot];
    Pack<uint8_t, N> out;
#pragma unroll
    for (int i = 0; i < N; ++i) out.item[i] = encode_one<__NV_E4M3>(w[i], scale, found);
    store_pack(quantized.out + first, out);
  }
  __shared__ int of_block;
  if (threadIdx.x == 0) of_block = slot;
  __syncthreads();
  if (__syncthreads_and(slot == of_block)) {  // true except at the borders of tensors
    if (slot >= 0)
      publish(found, {nullptr, quantized.amax + slot, quantized.counts + slot * kNumFp8Counts, int64_t{kThreads} * N},
              true);
    return;
  }
  if (slot < 0) return;
  auto* counts = reinterpret_cast<unsigned long long*>(quantized.counts + slot * kNumFp8Counts);
  const auto add = [&](Fp8Count which, unsigned long long found) {
    if (found != 0) atomicAdd(counts + static_cast<int>(which), found);
  };
  atomicMax(reinterpret_cast<unsigned*>(quantized.amax + slot), found.amax);
  add(Fp8Count::kElements, N);
  add(Fp8Count::kSaturated, found.saturated);
  add(Fp8Count::kUnderflowed, found.underflowed());
}

}  // namespace tri::cuda
