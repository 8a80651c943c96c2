// Our own attention on tensor cores: flash_attention.cuh, and a file for each pass.
#pragma once

#include "kernels/attention.h"
#include "kernels/cuda/stream.h"

namespace tri::cuda {

// Shapes that flash_attention_takes() (kernels/attention.h).
void flash_attention_forward(const AttentionForward& args, CudaStream& stream);
// The same bits each call: the partial sums of a query's gradient are added in the order of the key tiles.
void flash_attention_backward(const AttentionBackward& args, CudaStream& stream);

}  // namespace tri::cuda
