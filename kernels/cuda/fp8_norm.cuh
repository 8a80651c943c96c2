// Casts normed rows to FP8 as they are computed, with the results of fp8_cast after norm_forward: kernels/fp8.h.
#pragma once

#include "kernels/cuda/fp8_cast.cuh"
#include "kernels/cuda/norm.cuh"

namespace tri::cuda::norm {

// Like StoredRows (norm.cuh). A thread's packs are runs of bf16 (fp8_cast.cuh), or fewer elements, one by one.
template <class T>
struct CastRows {
  static constexpr int kWarps = 16;
  static constexpr size_t kSharedBytes = kPublishedBytes<kWarps>;
  static constexpr int64_t kMostPacks = kMostRuns;
  uint8_t* out;
  Fp8Target target;
  Fp8Found found = {};
  float scale = 0;

  __device__ void begin() { scale = *target.scale; }
  template <int kVec>
  __device__ __forceinline__ void put(int64_t at, const float (&x)[kVec]) {
    const Pack<T, kVec> rounded = pack_floats<T>(x);
    if constexpr (kVec == kRun) {
      *reinterpret_cast<uint2*>(out + at) = encode_run<__NV_E4M3>(rounded, scale, found);
    } else {
      Pack<uint8_t, kVec> quantized;
#pragma unroll
      for (int i = 0; i < kVec; ++i) quantized.item[i] = encode_one<__NV_E4M3>(to_float(rounded.item[i]), scale, found);
      *reinterpret_cast<Pack<uint8_t, kVec>*>(out + at) = quantized;
    }
  }
  __device__ void end() {
    publish<kWarps>(found, target, blockIdx.x == 0, static_cast<int>(threadIdx.y * blockDim.x + threadIdx.x),
                    static_cast<int>(blockDim.x * blockDim.y / 32));
  }
};

template <class T>
CastRows<T> cast_rows(const Fp8NormForward& n) {
  return {
      fp8_bytes(n.cast.out),
      {pointer<float>(n.cast.scale), pointer<float>(n.cast.amax), pointer<int64_t>(n.cast.counts), n.norm.inp.numel()}};
}

}  // namespace tri::cuda::norm
