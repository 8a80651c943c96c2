// Reading shards of a checkpoint into the ranks of a job. Every stored shard is read from storage once, by one of the
// ranks that need something of it, checked, and sent from there to the others. So it costs no further reading that tp
// ranks hold the same norms, that two stages hold a tied embedding, or that another layout cut the tensors elsewhere.
// Rank 0 alone knows the manifest; it divides the work (load_plan.h) and sends each rank its share.
#pragma once

#include <string>
#include <vector>

#include "io/checkpoint/manifest.h"
#include "lib/checkpoint/load_plan.h"
#include "lib/comm/job.h"

namespace tri {

struct LoadTarget {
  const TensorShard* shard;
  char* out;  // the array of shard->region
};

// The same on all ranks.
struct LoadLimits {
  int64_t block_bytes = int64_t{4} << 20;    // read, checked and sent at once
  int64_t window_bytes = int64_t{64} << 20;  // of the shards that a rank reads for others, held until they are sent
  int max_threads = 16;                      // that read at the same time, each with a block
};
// Host memory that a rank takes in addition to its targets, at most, until the load is done: the window, which ends
// with a whole block, the block that is being received, and one a thread.
constexpr int64_t load_bytes(const LoadLimits& limits = {}) {
  return limits.window_bytes + (2 + limits.max_threads) * limits.block_bytes;
}

// This rank's share of loading its `targets`. Collective; `manifest`: rank 0's, null elsewhere. Error, the same on all
// ranks: the checkpoint lacks a target's tensor, or has it with another shape, or a type not converted (load_plan.h).
Result<LoadShare> plan_load(const Manifest* manifest, const std::vector<LoadTarget>& targets, Job& job,
                            const LoadLimits& limits = {});

// Fills this rank's `targets`; `share` and `limits` are those of plan_load. The number of bytes that this rank has read
// from storage. Collective; the same first error on all ranks, with targets partly filled.
Result<int64_t> load_shards(const std::string& folder, const LoadShare& share, const std::vector<LoadTarget>& targets,
                            Job& job, const LoadLimits& limits = {});

}  // namespace tri
