#include "kernels/cuda/context.h"

#include <cuda.h>

#include "kernels/cuda/check.h"
#include "kernels/cuda/flash_attention.h"

namespace tri::cuda {

GpuProperties gpu_properties(int ordinal) {
  const auto attribute = [&](cudaDeviceAttr which) {
    int value = 0;
    TRI_CUDA(cudaDeviceGetAttribute(&value, which, ordinal));
    return value;
  };
  return {
      .num_multiprocessors = attribute(cudaDevAttrMultiProcessorCount),
      .capability = 10 * attribute(cudaDevAttrComputeCapabilityMajor) + attribute(cudaDevAttrComputeCapabilityMinor),
      .max_shared_bytes = attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin),
      .has_cudnn = built_with_cudnn(),
      .has_hopper_attention = built_for_hopper(),
      .has_clusters = attribute(cudaDevAttrClusterLaunch) != 0,
      .can_flush_remote_writes = attribute(cudaDevAttrCanFlushRemoteWrites) != 0};
}

unsigned wait_value_flags(const GpuProperties& gpu) {
  unsigned flags = CU_STREAM_WAIT_VALUE_GEQ;
  if (gpu.can_flush_remote_writes) flags |= CU_STREAM_WAIT_VALUE_FLUSH;
  return flags;
}

}  // namespace tri::cuda
