// The project's attention kernels on tensor cores, for shapes that flash_attention_takes() (kernels/attention.h). The
// backward pass is deterministic: the partial sums of a query's gradient are added in the order of the key tiles.
#pragma once

#include "kernels/attention.h"
#include "kernels/cuda/stream.h"

namespace tri::cuda {

// Hopper's kernels if the GPU can run them, otherwise those of mma.sync.
void flash_attention_forward(const AttentionForward& args, CudaStream& stream);
void flash_attention_backward(const AttentionBackward& args, CudaStream& stream);

// With mma.sync, for compute capability 8.0 and later: flash_attention.cuh, and a file for each pass.
void mma_attention_forward(const AttentionForward& args, CudaStream& stream);
void mma_attention_backward(const AttentionBackward& args, CudaStream& stream);

// With wgmma and TMA, for compute capability 9.0: hopper_attention.cuh, and a file for each pass. A build without code
// for sm_90a uses no_hopper.cpp instead.
bool built_for_hopper();
void hopper_attention_forward(const AttentionForward& args, CudaStream& stream);
void hopper_attention_backward(const AttentionBackward& args, CudaStream& stream);

}  // namespace tri::cuda
