// Our own attention kernels: attention.cu. Any shape that kernels/attention.h allows.
#pragma once

#include <cuda_runtime.h>

#include "kernels/attention.h"

namespace tri::cuda {

void builtin_attention_forward(const AttentionForward& args, cudaStream_t stream);
void builtin_attention_backward(const AttentionBackward& args, cudaStream_t stream);

}  // namespace tri::cuda
