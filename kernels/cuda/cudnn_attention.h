// cuDNN's fused attention, through the header-only cudnn-frontend. The file that defines it is picked by CMake:
// cudnn_attention.cpp, or no_cudnn.cpp where cuDNN or its frontend was not found.
#pragma once

#include <cuda_runtime.h>

#include "kernels/attention.h"

namespace tri::cuda {

// Whether cuDNN takes this call: bf16, head size a multiple of 8 up to 128, and one query head a key/value head,
// because grouped QKV rows of larger groups have no single stride from head to head.
bool cudnn_takes(Dtype dtype, int64_t head_size, int group);

void cudnn_attention_forward(const AttentionForward& args, cudaStream_t stream);
void cudnn_attention_backward(const AttentionBackward& args, cudaStream_t stream);

}  // namespace tri::cuda
