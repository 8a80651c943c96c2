// TRI_CUDA(call): throws Fatal (kDevice) with the call and CUDA's error text. TRI_CUDA_LAUNCH(name): the same for the
// previous launch. It detects bad configurations at once; faults of running kernels appear at the next wait.
#pragma once

#include <cuda_runtime.h>

#include "io/base/error.h"

namespace tri::cuda {

inline void check(cudaError_t status, const char* what) {
  if (status == cudaSuccess) return;
  cudaGetLastError();  // clears it, if it can be cleared: else the next launch would report it again
  // The driver reserves far more addresses than memory.
  throw Fatal(ExitCode::kDevice,
              fmt::format("{}: {} ({}){}", what, cudaGetErrorString(status), cudaGetErrorName(status),
                          status == cudaErrorMemoryAllocation ? address_space_limit() : ""));
}

}  // namespace tri::cuda

#define TRI_CUDA(call) ::tri::cuda::check((call), #call)
#define TRI_CUDA_LAUNCH(name) ::tri::cuda::check(cudaGetLastError(), "launch of " name)
