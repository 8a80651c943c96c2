// The sum of contiguous parts (kernels/elementwise.h). Mapping: one thread per sixteen bytes if the parts are aligned,
// otherwise per element. Bound: memory, each element once. Reference: kernels/cpu/elementwise.cpp.
#include "kernels/cuda/check.h"
#include "kernels/cuda/device_math.cuh"
#include "kernels/cuda/dispatch.h"
#include "kernels/cuda/ops.h"

namespace tri::cuda {
namespace {

constexpr int kThreads = 256;

// out = base + (the sum of `num_added` contiguous parts of `count` elements that start at `added`). base may be out.
template <class T, int kVec>
__global__ void sum_parts_kernel(T* out, const T* base, const T* added, int num_added, int64_t count) {
  const int64_t i = (blockIdx.x * int64_t{kThreads} + threadIdx.x) * kVec;
  if (i >= count) return;
  Pack<T, kVec> sum = load_pack<kVec>(base + i);
  if (num_added > 0) {
    const T* part = added + i;
    float y[kVec];
    unpack(load_pack<kVec>(part), y);
#pragma unroll 4
    for (int p = 1; p < num_added; ++p) {
      part += count;
      float more[kVec];
      unpack(load_pack<kVec>(part), more);
#pragma unroll
      for (int k = 0; k < kVec; ++k) y[k] += more[k];
    }
#pragma unroll
    for (int k = 0; k < kVec; ++k) sum.item[k] = from_float<T>(to_float(sum.item[k]) + y[k]);
  }
  store_pack(out + i, sum);
}

}  // namespace

void sum_parts(const SumParts& s, CudaStream& stream) {
  const int64_t count = s.out.numel();
  if (count == 0) return;
  dispatch(s.out.dtype, [&](auto type) {
    using T = decltype(type);
    const bool packs = aligned<T>(count, {s.out, s.parts});
    const int64_t threads = packs ? count / Pack<T>::kSize : count;
    const bool adds = s.into == SumInto::kAdd;
    const T* parts = pointer<T>(s.parts);
    auto kernel = packs ? sum_parts_kernel<T, Pack<T>::kSize> : sum_parts_kernel<T, 1>;
    kernel<<<static_cast<unsigned>((threads + kThreads - 1) / kThreads), kThreads, 0, stream>>>(
        pointer<T>(s.out), adds ? pointer<T>(s.out) : parts, adds ? parts : parts + count,
        static_cast<int>(s.parts[0]) - (adds ? 0 : 1), count);
    TRI_CUDA_LAUNCH("sum_parts");
  });
}

}  // namespace tri::cuda
