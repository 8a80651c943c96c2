// How much device memory a backend's kernels and libraries take in addition to their operands.
#pragma once

#include "kernels/core/gpu.h"

namespace tri {

// Bytes, at most, on the compute stream of one rank; 0 on the CPU. Device::workspace_bytes() gives it for a device that
// is there; `trireme check`, which may have none, for an H200 (GpuProperties' defaults).
int64_t workspace_bytes(DeviceKind kind, const WorkspaceDims& dims, const GpuProperties& gpu = {});

// The bytes of one call of the attention kernels that `dims` leads to, the larger of both passes.
int64_t attention_workspace_bytes(const WorkspaceDims& dims, const GpuProperties& gpu);
// Of it, cuDNN's backward graph with its deterministic algorithm, and our own FlashAttention's backward pass.
int64_t cudnn_workspace_bytes(const WorkspaceDims& dims);
int64_t flash_workspace_bytes(const WorkspaceDims& dims);

// How many sequences of the batch an execution of cuDNN's takes; the last one the rest. Of rows by kind as many as keep
// the workspace within kCudnnWorkspaceBytes, and at least one; of grouped rows all, or one where they have no single
// query stride (qkv_row.h).
int64_t cudnn_sequences(const WorkspaceDims& dims);
inline constexpr int64_t kCudnnWorkspaceBytes = int64_t{3} << 30;

// cuBLASLt may use this much, and is given it.
inline constexpr int64_t kGemmWorkspaceBytes = int64_t{64} << 20;

}  // namespace tri
