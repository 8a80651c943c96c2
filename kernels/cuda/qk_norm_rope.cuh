// Shared by the kernels of QK-norm with rotary position embedding.
#pragma once

#include "kernels/cuda/device_math.cuh"

namespace tri::cuda {

namespace {

constexpr unsigned kAllLanes = 0xFFFFFFFFu;

template <class T, int kVec, int kPacks>
struct HeadPacks {
  Pack<T, kVec> first[kPacks], second[kPacks];
};

// A lane's share of the heads: packs p at elements element(p) of either half, if owns(p).
template <class T, int kVec, int kLanes, int kPacks>
struct Lane {
  static constexpr int kGroups = 32 / kLanes;  // heads that a warp processes at a time
  using Packs = HeadPacks<T, kVec, kPacks>;
  int index, group, half;

  __device__ explicit Lane(int half_) : index(threadIdx.x % kLanes), group(threadIdx.x % 32 / kLanes), half(half_) {}
  __device__ int element(int p) const { return (p * kLanes + index) * kVec; }
  __device__ bool owns(int p) const { return element(p) < half; }

  __device__ Packs load(const T* head, bool present) const {
    Packs packs{};
#pragma unroll
    for (int p = 0; p < kPacks; ++p)
      if (present && owns(p)) {
        packs.first[p] = load_pack<kVec>(head + element(p));
        packs.second[p] = load_pack<kVec>(head + half + element(p));
      }
    return packs;
  }
  __device__ void store(T* head, const Packs& packs) const {
#pragma unroll
    for (int p = 0; p < kPacks; ++p)
      if (owns(p)) {
        store_pack(head + element(p), packs.first[p]);
        store_pack(head + half + element(p), packs.second[p]);
      }
  }
  __device__ void load_angles(const float* table, float2 (&angles)[kPacks][kVec]) const {
#pragma unroll
    for (int p = 0; p < kPacks; ++p) {
      const float* from = table + 2 * element(p);
      if constexpr (kVec % 2 == 0) {
#pragma unroll
        for (int i = 0; i < kVec; i += 2) {
          const float4 two = owns(p) ? *reinterpret_cast<const float4*>(from + 2 * i) : float4{1, 0, 1, 0};
          angles[p][i] = {two.x, two.y};
          angles[p][i + 1] = {two.z, two.w};
        }
      } else {
#pragma unroll
        for (int i = 0; i < kVec; ++i) angles[p][i] = owns(p) ? reinterpret_cast<const float2*>(from)[i] : float2{1, 0};
      }
    }
  }
};

// Returns the sum over the lanes of a head, in each of them.
template <int kLanes>
__device__ __forceinline__ float head_sum(float value) {
#pragma unroll
  for (int offset = kLanes / 2; offset > 0; offset /= 2) value += __shfl_xor_sync(kAllLanes, value, offset);
  return value;
}

}  // namespace
}  // namespace tri::cuda
