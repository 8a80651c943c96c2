// The host memory of checkpoints in memory (checkpoint.memory_every): two segments of a rank's own state, which
// alternate, and two of the rank whose buddy it is.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "io/base/error.h"
#include "lib/checkpoint/state.h"
#include "lib/comm/job/job.h"

namespace tri {

// Returns the bytes of a segment: header, table, and the shards that the rank writes to storage too.
int64_t memory_segment_bytes(const std::vector<StateShard>& shards);

// Returns the bytes of a rank's segments. `nodes`: of the job; one node alone has no buddy.
constexpr int64_t memory_checkpoint_bytes(int64_t segment_bytes, int64_t nodes) {
  return (nodes > 1 ? 4 : 2) * segment_bytes;
}

// What a node can give, in bytes; -1: unknown.
struct NodeMemory {
  int64_t shared = -1;     // free in the folder of segments
  int64_t available = -1;  // MemAvailable
};
// `folder`: of segments. `reused`: bytes of segments there that the job writes again, which count as free.
NodeMemory node_memory(const std::string& folder, int64_t reused);

// Returns the bytes of the files in `folder` that are segments of the run in `run_dir` (an absolute path).
int64_t reused_segment_bytes(const std::string& folder, const std::string& run_dir);

// Fails with kUsage, naming the amounts and the remedies, if segments of `segments` bytes and other host memory of
// `others` bytes do not fit on the node `host` with `ranks` ranks.
Result<void> check_memory_budget(const std::string& host, int ranks, int64_t segments, int64_t others,
                                 const NodeMemory& memory);

// The check at a start. `segment`, `others`: bytes of this rank's segment and of its other host memory for checkpoints.
// Collective; a rank returns only its own node's failure.
Result<void> check_memory_budget(Job& job, const std::string& run_dir, int64_t segment, int64_t others);

}  // namespace tri
