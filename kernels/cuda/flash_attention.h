// Our own attention on tensor cores: flash_attention.cuh, and a file for each pass.
#pragma once

#include <cuda_runtime.h>

#include "kernels/attention.h"

namespace tri::cuda {

// bf16 and head sizes 64, 96 and 128; any group, window and sequence length.
bool flash_takes(Dtype dtype, int64_t head_size);
void flash_attention_forward(const AttentionForward& args, cudaStream_t stream);
// The same bits each call: the partial sums of a query's gradient are added in the order of the key tiles.
void flash_attention_backward(const AttentionBackward& args, cudaStream_t stream);

}  // namespace tri::cuda
