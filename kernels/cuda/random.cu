// normal_values (kernels/random.h): Philox4x32-10 and Box-Muller in double, like io/base/random.cpp. The logarithm and
// the cosine are CUDA's, so in rare elements the last bit differs from the host's.
// Mapping: one thread per element.  Bound: arithmetic in double.  Reference: kernels/cpu/random.cpp.
#include "io/base/random.h"
#include "kernels/cuda/check.h"
#include "kernels/cuda/device_math.cuh"
#include "kernels/cuda/dispatch.h"
#include "kernels/cuda/ops.h"

namespace tri::cuda {
namespace {

constexpr int kThreads = 256;

template <class T>
__global__ void normal_kernel(T* out, int64_t count, const NormalValues v) {
  const int64_t i = blockIdx.x * int64_t{kThreads} + threadIdx.x;
  if (i >= count) return;
  const int64_t element = element_of(v, v.begin + i);
  float value = 0.0f;
  if (element < v.valid) {
    const PolarPoint point = polar_point(v.key, static_cast<uint64_t>(element));
    value = v.scale * static_cast<float>(sqrt(-2.0 * log(point.u)) * cos(point.angle));
  }
  out[i] = from_float<T>(value);
}

}  // namespace

void normal_values(const NormalValues& v, CudaStream& stream) {
  const int64_t count = v.out.numel();
  if (count == 0) return;
  dispatch(v.out.dtype, [&](auto type) {
    using T = decltype(type);
    const auto blocks = static_cast<unsigned>((count + kThreads - 1) / kThreads);
    normal_kernel<T><<<blocks, kThreads, 0, stream>>>(pointer<T>(v.out), count, v);
  });
  TRI_CUDA_LAUNCH("normal_values");
}

}  // namespace tri::cuda
