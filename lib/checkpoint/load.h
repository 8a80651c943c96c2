// Reads shards of a checkpoint into the ranks of a job. One of the ranks that need a stored shard reads it once from
// storage, checks it, and sends it to the others. So nothing is read twice when tp ranks hold the same norms, two
// stages hold a tied embedding, or another layout cut the tensors differently. Only rank 0 knows the manifest; it
// divides the work (load_plan.h) and sends each rank its share.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "io/checkpoint/manifest.h"
#include "lib/checkpoint/load_plan.h"
#include "lib/comm/job/job.h"

namespace tri {

struct LoadTarget {
  const TensorShard* shard;
  char* out;  // the array of shard->region
};

// The limits must be the same on all ranks.
struct LoadLimits {
  int64_t block_bytes = int64_t{4} << 20;    // the unit of reading, checking and sending
  int64_t window_bytes = int64_t{64} << 20;  // of the shards that a rank reads for others, held until they are sent
  int max_threads = 16;                      // reading concurrently, each with a block
};
// Returns the most host memory that a rank needs in addition to its targets until the load is done: the window, which
// ends with a whole block, the block being received, and one block per thread.
constexpr int64_t load_bytes(const LoadLimits& limits = {}) {
  return limits.window_bytes + (2 + limits.max_threads) * limits.block_bytes;
}

// Plans this rank's share of loading its `targets`. `manifest`: rank 0's, null elsewhere. Fails, with the same error on
// all ranks, if the checkpoint lacks a target's tensor, or has it with another shape or a type that is not converted
// (load_plan.h). `readers`: as in divide_load, on rank 0. Collective.
Result<LoadShare> plan_load(const Manifest* manifest, const std::vector<LoadTarget>& targets, Job& job,
                            const LoadLimits& limits = {}, const std::vector<int>& readers = {});

// Fills this rank's `targets`; `share` and `limits` are those of plan_load. Returns the bytes that this rank has read
// from storage. On failure all ranks return the same first error, and targets are partly filled. Collective.
Result<int64_t> load_shards(const std::string& folder, const LoadShare& share, const std::vector<LoadTarget>& targets,
                            Job& job, const LoadLimits& limits = {});

// The same in two parts: a thread loads from construction on, while the training thread does something else. Until
// finish() returns, no other thread calls Job::exchange. `share` and `targets` outlive this.
class LoadThread {
 public:
  // `prepare` is called first, on the thread: it may set LoadTarget::out.
  LoadThread(const std::string& folder, const LoadShare& share, const std::vector<LoadTarget>& targets, Job& job,
             const LoadLimits& limits = {}, std::function<void()> prepare = {});
  ~LoadThread();  // waits for the thread

  // Waits for the threads of all ranks; returns what load_shards does, and rethrows what `prepare` has thrown.
  // Collective, once.
  Result<int64_t> finish();
  double seconds() const;  // that this rank's thread took; call after finish()

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace tri
