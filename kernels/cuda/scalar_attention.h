// Attention without tensor cores: scalar_attention.cu. Supports any shape that kernels/attention.h allows.
#pragma once

#include "kernels/attention.h"
#include "kernels/cuda/stream.h"

namespace tri::cuda {

void scalar_attention_forward(const AttentionForward& args, CudaStream& stream);
void scalar_attention_backward(const AttentionBackward& args, CudaStream& stream);

}  // namespace tri::cuda
