// The residual addition alone (kernels/norm.h). Mapping: one thread per sixteen bytes if rows are aligned, otherwise
// per element. Bound: memory, each element once. Reference: kernels/cpu/norm.cpp.
#include "kernels/cuda/check.h"
#include "kernels/cuda/dispatch.h"
#include "kernels/cuda/ops.h"
#include "kernels/cuda/parts.cuh"

namespace tri::cuda {
namespace {

constexpr int kThreads = 256;

template <class T, int kVec>
__global__ void residual_add_kernel(T* out, const T* inp, const T* add, const T* bias, int64_t count, int64_t width,
                                    MoreParts<T> more_adds) {
  const int64_t i = (blockIdx.x * int64_t{kThreads} + threadIdx.x) * kVec;
  if (i >= count) return;
  const Pack<T, kVec> x = load_pack<kVec>(inp + i);
  float y[kVec];
  unpack(load_pack<kVec>(add + i), y);
  if (more_adds.count > 0) add_parts(more_adds, i, y);
  Pack<T, kVec> b, sum;
  if (bias != nullptr) b = load_pack<kVec>(bias + i % width);
#pragma unroll
  for (int k = 0; k < kVec; ++k) {
    float value = to_float(x.item[k]) + y[k];
    if (bias != nullptr) value += to_float(b.item[k]);
    sum.item[k] = from_float<T>(value);
  }
  store_pack(out + i, sum);
}

}  // namespace

void residual_add(const ResidualAdd& a, CudaStream& stream) {
  const int64_t count = a.inp.numel();
  if (count == 0) return;
  dispatch(a.inp.dtype, [&](auto type) {
    using T = decltype(type);
    const bool packs = aligned<T>(a.inp[1], {a.out, a.inp, a.add, a.add_bias});
    const int64_t threads = packs ? count / Pack<T>::kSize : count;
    auto kernel = packs ? residual_add_kernel<T, Pack<T>::kSize> : residual_add_kernel<T, 1>;
    kernel<<<static_cast<unsigned>((threads + kThreads - 1) / kThreads), kThreads, 0, stream>>>(
        pointer<T>(a.out), pointer<T>(a.inp), pointer<T>(a.add), pointer<T>(a.add_bias), count, a.inp[1],
        more_parts<T>(a.add));
    TRI_CUDA_LAUNCH("residual_add");
  });
}

}  // namespace tri::cuda
