// Functions of the CUDA driver, found through the runtime, so that a machine without GPUs need not link the driver.
#pragma once

#include <cuda.h>
#include <cudaTypedefs.h>

#include "kernels/cuda/check.h"

namespace tri::cuda {

template <class Function>
Function driver_function(const char* name) {
  void* function = nullptr;
  cudaDriverEntryPointQueryResult found{};
#if CUDART_VERSION >= 12050
  TRI_CUDA(cudaGetDriverEntryPointByVersion(name, &function, 12000, cudaEnableDefault, &found));
#else
  TRI_CUDA(cudaGetDriverEntryPoint(name, &function, cudaEnableDefault, &found));
#endif
  if (found != cudaDriverEntryPointSuccess) throw Fatal(ExitCode::kDevice, fmt::format("the driver has no {}", name));
  return reinterpret_cast<Function>(function);
}

inline void driver_check(CUresult result, const char* call) {
  if (result == CUDA_SUCCESS) return;
  throw Fatal(ExitCode::kDevice, fmt::format("{}: CUDA driver error {}", call, static_cast<int>(result)));
}

}  // namespace tri::cuda
