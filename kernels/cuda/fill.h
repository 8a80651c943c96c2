// Numbers for timing: nothing runs at its true speed on zeros.
#pragma once

#include <cuda_runtime.h>

#include "kernels/core/tensor.h"

namespace tri::cuda {

// Uniform in [-1, 1), the same every time; an absent tensor is left alone.
void fill_random(const Tensor& tensor, cudaStream_t stream);

}  // namespace tri::cuda
