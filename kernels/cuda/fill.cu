// Uniform numbers from a hash of the element's index. Mapping: a thread an element.
#include "kernels/cuda/check.h"
#include "kernels/cuda/device_math.cuh"
#include "kernels/cuda/dispatch.h"
#include "kernels/cuda/fill.h"

namespace tri::cuda {
namespace {

constexpr int kThreads = 256;

template <class T>
__global__ void fill_kernel(T* out, int64_t count) {
  const int64_t i = blockIdx.x * int64_t{kThreads} + threadIdx.x;
  if (i >= count) return;
  uint64_t x = static_cast<uint64_t>(i) * 0x9E3779B97F4A7C15u;  // splitmix64
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
  out[i] = from_float<T>(static_cast<float>((x >> 40) * 0x1p-23 - 1.0));
}

}  // namespace

void fill_random(const Tensor& tensor, cudaStream_t stream) {
  if (tensor.empty() || tensor.numel() == 0) return;
  dispatch(tensor.dtype, [&](auto type) {
    using T = decltype(type);
    fill_kernel<T><<<static_cast<unsigned>((tensor.numel() + kThreads - 1) / kThreads), kThreads, 0, stream>>>(
        pointer<T>(tensor), tensor.numel());
  });
  TRI_CUDA_LAUNCH("fill_random");
}

}  // namespace tri::cuda
