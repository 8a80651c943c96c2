// Uniform numbers from a hash of the element's index, for timings only: no CPU reference. Shape: any number of
// elements. Mapping: one thread per element. Bound: memory, each element written once.
#include <cuda_fp8.h>

#include "kernels/cuda/check.h"
#include "kernels/cuda/device_math.cuh"
#include "kernels/cuda/dispatch.h"
#include "kernels/cuda/fill.h"

namespace tri::cuda {
namespace {

constexpr int kThreads = 256;

// Returns the encoding of a number; FP8 is a byte.
template <class T, __nv_fp8_interpretation_t kFormat>
__device__ T stored(float value) {
  if constexpr (sizeof(T) == 1)
    return __nv_cvt_float_to_fp8(value, __NV_SATFINITE, kFormat);
  else
    return from_float<T>(value);
}

template <class T, __nv_fp8_interpretation_t kFormat = __NV_E4M3>
__global__ void fill_kernel(T* out, int64_t count) {
  const int64_t i = blockIdx.x * int64_t{kThreads} + threadIdx.x;
  if (i >= count) return;
  uint64_t x = static_cast<uint64_t>(i) * 0x9E3779B97F4A7C15u;  // splitmix64
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
  out[i] = stored<T, kFormat>(static_cast<float>((x >> 40) * 0x1p-23 - 1.0));
}

}  // namespace

void fill_random(const Tensor& tensor, cudaStream_t stream) {
  if (tensor.empty() || tensor.numel() == 0) return;
  const int64_t count = tensor.numel();
  const auto blocks = static_cast<unsigned>((count + kThreads - 1) / kThreads);
  if (tensor.dtype == Dtype::kE4M3)
    fill_kernel<uint8_t, __NV_E4M3><<<blocks, kThreads, 0, stream>>>(pointer<uint8_t>(tensor), count);
  else if (tensor.dtype == Dtype::kE5M2)
    fill_kernel<uint8_t, __NV_E5M2><<<blocks, kThreads, 0, stream>>>(pointer<uint8_t>(tensor), count);
  else
    dispatch(tensor.dtype, [&](auto type) {
      using T = decltype(type);
      fill_kernel<T><<<blocks, kThreads, 0, stream>>>(pointer<T>(tensor), count);
    });
  TRI_CUDA_LAUNCH("fill_random");
}

}  // namespace tri::cuda
