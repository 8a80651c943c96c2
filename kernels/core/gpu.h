// The properties of a GPU that kernels depend on, and the dims that decide how much memory they take in addition to
// their operands.
#pragma once

#include <cstdint>

#include "kernels/core/dtype.h"
#include "kernels/core/kinds.h"

namespace tri {

// The defaults are those of an H200 in a build with cuDNN. `trireme check` assumes them where no GPU is present.
struct GpuProperties {
  int num_multiprocessors = 132;
  int capability = 90;                    // 10 · major + minor of the compute capability
  int64_t max_shared_bytes = 227 * 1024;  // of a block (opted in)
  bool has_cudnn = true;                  // this build can call cuDNN's attention
  bool has_hopper_attention = true;       // this build has the project's attention kernels for sm_90a
  bool has_clusters = true;               // blocks of a launch can share memory in clusters (since sm_90)
  bool can_flush_remote_writes = false;   // a stream's wait can flush writes of other devices
};

inline constexpr int kFp8Capability = 89;  // 8.9, the first that multiplies FP8

// The GPU's load at one moment.
struct GpuLoad {
  double sm_mhz = 0;       // clock of the multiprocessors
  double watts = 0;        // power draw, averaged by the driver over about the last second
  double watts_limit = 0;  // the driver lowers the clock at this power
  double celsius = 0;
};

// The shapes of one rank's share of the model that its kernels' workspace depends on.
struct WorkspaceDims {
  Dtype dtype = Dtype::kF32;
  AttentionKernel attention = AttentionKernel::kAuto;
  int64_t batch = 0;                    // B
  int seq_len = 0;                      // T
  int64_t width = 0;                    // C
  int64_t widest = 0;                   // columns of the widest activation whose rows a bias gradient sums
  int num_kv_heads = 0;                 // NKVl
  int group = 0;                        // G
  QkvOrder order = QkvOrder::kGrouped;  // the order of the QKV rows that attention reads
  int64_t head_size = 0;                // HS
  int window = 0;                       // W; 0 = full causal
  bool softcap = false;
  bool documents = false;  // data.document_mask
  int key_len = 0;         // T of the whole sample, if the rank has only a part of it; 0: seq_len
};

}  // namespace tri
