// The CUDA backend's streams, for code that launches on them: kernels and NCCL groups. Included only by CUDA code.
#pragma once

#include <cuda_runtime.h>

#include "kernels/core/device.h"

namespace tri {

namespace cuda {
class Context;  // kernels/cuda/context.h
}

class CudaStream : public Stream {
 public:
  virtual cudaStream_t get() const = 0;
  operator cudaStream_t() const { return get(); }  // a launch accepts it directly
  cuda::Context& context() const { return *context_; }

 protected:
  CudaStream(std::string name, const OpTable& ops, cuda::Context& context)
      : Stream(std::move(name), ops), context_(&context) {}

 private:
  cuda::Context* context_;
};

inline CudaStream& cuda_stream(Stream& stream) { return static_cast<CudaStream&>(stream); }

}  // namespace tri
