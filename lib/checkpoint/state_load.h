// Loads a checkpoint into a rank's host memory on a thread, while the training thread goes on. Host memory is laid out
// as state_buffer() says, also if `shards` are those of a measuring arena: its addresses differ from the device's by a
// constant.
#pragma once

#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "kernels/core/device.h"
#include "lib/checkpoint/load.h"
#include "lib/checkpoint/search.h"
#include "lib/checkpoint/state.h"

namespace tri {

class StateLoad {
 public:
  struct Context {
    const FoundCheckpoint& from;
    const Manifest* manifest;         // rank 0's, null elsewhere
    const std::vector<int>& readers;  // as in divide_load
    Job& job;
    Device& device;
  };
  // Plans the load, then begins to read into `host`, or if that is null, into memory that the thread allocates. Fails
  // as plan_load does; `host` is then unchanged. Until finish() returns, no other thread calls Job::exchange.
  // Collective.
  static Result<std::unique_ptr<StateLoad>> begin(const Context& context, std::vector<StateShard> shards,
                                                  std::unique_ptr<HostBuffer<char>>& host);

  // Waits for all ranks, and returns the bytes that this one has read. Fails, with the same error on all ranks, if a
  // shard is damaged or gone. Moves the memory, which is then partly filled, to `host` either way. Throws Fatal
  // (kDevice) if it could not be allocated. Collective, once.
  Result<int64_t> finish(std::unique_ptr<HostBuffer<char>>& host);
  double seconds() const { return thread_->seconds(); }  // that the thread took; call after finish()

  const StateBuffer& buffer() const { return buffer_; }
  const std::vector<size_t>& wanted() const { return wanted_; }  // indices of the shards that it loads
  int64_t stored_bytes() const { return stored_; }               // of all tensors, on rank 0
  // Returns, on rank 0, "moments converted from f32 to bf16, ", or "".
  const std::string& conversion() const { return conversion_; }

 private:
  StateLoad(const Context& context, std::vector<StateShard> shards);

  std::vector<StateShard> shards_;
  StateBuffer buffer_;
  std::vector<size_t> wanted_;
  std::deque<TensorShard> starts_;  // the weights from which an average starts that the checkpoint does not have
  std::vector<LoadTarget> targets_;
  int64_t stored_ = 0;
  std::string conversion_;
  LoadShare share_;
  std::unique_ptr<HostBuffer<char>> host_;
  std::unique_ptr<LoadThread> thread_;  // last: it uses the members above
};

// Returns host memory for `buffer`; throws Fatal (kDevice) if there is too little.
std::unique_ptr<HostBuffer<char>> host_memory(const StateBuffer& buffer, Device& device);

}  // namespace tri
