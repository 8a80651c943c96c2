// One GPU's FP8 GEMMs: cuBLASLt's plans and algorithms by shape. Thread-safe.
#pragma once

#include <cublasLt.h>

#include <memory>

#include "kernels/cuda/stream.h"
#include "kernels/fp8.h"

namespace tri::cuda {

class Fp8GemmEngine {
 public:
  Fp8GemmEngine();  // on the current device
  ~Fp8GemmEngine();
  Fp8GemmEngine(const Fp8GemmEngine&) = delete;
  Fp8GemmEngine& operator=(const Fp8GemmEngine&) = delete;

  // Fatal (kDevice), naming the shape, where cuBLASLt has no algorithm: GPUs before sm_89 have none at all.
  void multiply(const Fp8Gemm& g, CudaStream& stream);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace tri::cuda
