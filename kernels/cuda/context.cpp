#include "kernels/cuda/context.h"

#include "kernels/cuda/check.h"

namespace tri::cuda {

GpuProperties gpu_properties(int ordinal) {
  const auto attribute = [&](cudaDeviceAttr which) {
    int value = 0;
    TRI_CUDA(cudaDeviceGetAttribute(&value, which, ordinal));
    return value;
  };
  return {.num_multiprocessors = attribute(cudaDevAttrMultiProcessorCount),
          .max_shared_bytes = attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin),
          .has_cudnn = built_with_cudnn(),
          .has_clusters = attribute(cudaDevAttrClusterLaunch) != 0};
}

}  // namespace tri::cuda
