// Attention without tensor cores: plain_attention.cu. Any shape that kernels/attention.h allows.
#pragma once

#include <cuda_runtime.h>

#include "kernels/attention.h"

namespace tri::cuda {

void plain_attention_forward(const AttentionForward& args, cudaStream_t stream);
void plain_attention_backward(const AttentionBackward& args, cudaStream_t stream);

}  // namespace tri::cuda
