// The CUDA backend's streams, for those who launch on them: kernels and NCCL groups. Included by CUDA code
// only.
#pragma once

#include <cuda_runtime.h>

#include "kernels/core/device.h"

namespace tri {

class CudaStream : public Stream {
 public:
  using Stream::Stream;
  virtual cudaStream_t get() const = 0;
};

inline cudaStream_t cuda_stream(Stream& stream) { return static_cast<CudaStream&>(stream).get(); }

}  // namespace tri
