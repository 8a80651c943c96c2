// The device memory that a backend's kernels and libraries need in addition to their operands. Pure functions.
#pragma once

#include "kernels/core/gpu.h"

namespace tri {

// Returns the most bytes needed on the compute stream of one rank; 0 on the CPU. Device::workspace_bytes() returns it
// for an existing device; `trireme check`, which may have none, computes it for an H200 (GpuProperties' defaults).
int64_t workspace_bytes(DeviceKind kind, const WorkspaceDims& dims, const GpuProperties& gpu = {});

// Returns the bytes of one call of the attention kernels chosen for `dims`, the larger of both passes.
int64_t attention_workspace_bytes(const WorkspaceDims& dims, const GpuProperties& gpu);
// The parts of that: cuDNN's deterministic backward graph, and the backward pass of the FlashAttention kernels.
int64_t cudnn_workspace_bytes(const WorkspaceDims& dims);
int64_t flash_workspace_bytes(const WorkspaceDims& dims);

// Returns how many sequences of the batch one execution of cuDNN processes; the last execution takes the rest. For rows
// by kind, as many as keep the workspace within kCudnnWorkspaceBytes, and at least one. For grouped rows all, or one
// where the rows have no single query stride (qkv_row.h).
int64_t cudnn_sequences(const WorkspaceDims& dims);
inline constexpr int64_t kCudnnWorkspaceBytes = int64_t{3} << 30;

// cuBLASLt's workspace.
inline constexpr int64_t kGemmWorkspaceBytes = int64_t{64} << 20;

}  // namespace tri
