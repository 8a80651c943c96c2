// What kernels must know of the GPU they run on, and what decides the memory that they take in addition to their
// operands.
#pragma once

#include <cstdint>

#include "kernels/core/dtype.h"
#include "kernels/core/kinds.h"

namespace tri {

// The defaults are an H200's, in a build with cuDNN: what `trireme check` assumes where there is no GPU to ask.
struct GpuProperties {
  int num_multiprocessors = 132;
  int capability = 90;                    // 10 · major + minor of the compute capability
  int64_t max_shared_bytes = 227 * 1024;  // shared memory of a block, at most (opted in)
  bool has_cudnn = true;                  // this build can call cuDNN's attention
  bool has_hopper_attention = true;       // this build has our attention kernels for sm_90a
  bool has_clusters = true;               // blocks of a launch can share memory in clusters (sm_90 on)
  bool can_flush_remote_writes = false;   // a stream's wait can flush what other devices have written
};

inline constexpr int kFp8Capability = 89;  // the first that multiplies FP8

// How hard a GPU works at a moment.
struct GpuLoad {
  double sm_mhz = 0;       // clock of the multiprocessors
  double watts = 0;        // drawn; the driver's mean of about the last second
  double watts_limit = 0;  // at which the driver lowers the clock
  double celsius = 0;
};

// The shapes of one rank's share of the model that its kernels' workspace depends on.
struct WorkspaceDims {
  Dtype dtype = Dtype::kF32;
  AttentionKernel attention = AttentionKernel::kAuto;
  int64_t batch = 0;                    // B
  int seq_len = 0;                      // T
  int64_t width = 0;                    // C
  int64_t widest = 0;                   // columns of the widest activation, of which a bias gradient sums the rows
  int num_kv_heads = 0;                 // NKVl
  int group = 0;                        // G
  QkvOrder order = QkvOrder::kGrouped;  // in which attention reads QKV rows
  int64_t head_size = 0;                // HS
  int window = 0;                       // W; 0 = full causal
};

}  // namespace tri
