// Our own attention on tensor cores, for shapes that flash_attention_takes() (kernels/attention.h). Backward makes the
// same bits each call: the partial sums of a query's gradient are added in the order of the key tiles.
#pragma once

#include "kernels/attention.h"
#include "kernels/cuda/stream.h"

namespace tri::cuda {

// Hopper's kernels where they can run, else those of mma.sync.
void flash_attention_forward(const AttentionForward& args, CudaStream& stream);
void flash_attention_backward(const AttentionBackward& args, CudaStream& stream);

// By mma.sync, for compute capability 8.0 and later: flash_attention.cuh, and a file for each pass.
void mma_attention_forward(const AttentionForward& args, CudaStream& stream);
void mma_attention_backward(const AttentionBackward& args, CudaStream& stream);

// By wgmma and TMA, for compute capability 9.0: hopper_attention.cuh, and a file for each pass. In a build without code
// for sm_90a no_hopper.cpp stands in for them.
inline constexpr int64_t kHopperSharedBytes = 196 * 1024;  // shared memory of a block, at most
bool built_for_hopper();
inline bool hopper_attention_runs(const GpuProperties& gpu) {
  return built_for_hopper() && gpu.capability == 90 && gpu.max_shared_bytes >= kHopperSharedBytes;
}
void hopper_attention_forward(const AttentionForward& args, CudaStream& stream);
void hopper_attention_backward(const AttentionBackward& args, CudaStream& stream);

}  // namespace tri::cuda
