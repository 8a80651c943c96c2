// Numbers for timing, since kernels are faster on zeros.
#pragma once

#include <cuda_runtime.h>

#include "kernels/core/tensor.h"

namespace tri::cuda {

// Fills the tensor with the same uniform numbers in [-1, 1) every time; skips an absent tensor.
void fill_random(const Tensor& tensor, cudaStream_t stream);

}  // namespace tri::cuda
