// Checkpoints in memory (checkpoint.memory_every): every rank copies its state into shared memory of its node, from
// where a restarted job can load it, and a copy of that to another node, its buddy.
//
//   begin()         enqueues the copies from the device, on a separate stream, concurrently with the next step, whose
//                   update waits for them; a thread then computes checksums, completes the segment, sends it to the
//                   buddy, and receives the one of the rank whose buddy this is
//
// Two generations alternate: a segment is overwritten only when the other slot's generation is complete on all ranks.
// So after a fault one complete generation exists, unless a node and its buddy are lost together. The training loop
// calls settle() before the step after a generation counts: at most checkpoint.memory_every steps are repeated.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <future>
#include <memory>
#include <string>
#include <vector>

#include "io/checkpoint/memory_segment.h"
#include "lib/checkpoint/checkpointer.h"

namespace tri {

// Returns the rank to which each rank sends its copies: [world rank]; a permutation that moves every rank to another
// host. Prefers the nearest rank along dp for which that holds, which is in another tp/pp group; else moves by the
// largest number of ranks of a host. Empty if there is none, such as on one host.
std::vector<int> buddies(const Mesh& mesh, const std::vector<std::string>& hosts);

// Returns the identity of a layout: segments of another one are not loaded.
uint64_t segment_layout(const Config& config, const Mesh& mesh);

// Returns where segments are: the folder of flight recorders.
std::string segment_folder();

class MemoryCheckpoints {
 public:
  struct Context {
    const CheckpointContext& checkpoint;
    const Checkpointer& checkpoints;  // formats the run's state in addition to tensors
    std::string run_dir;              // absolute
    const MemoryGeneration* loaded =
        nullptr;  // from which this start resumed; its segments stay until they are replaced
  };
  // Reserves the memory of all segments; removes the run's other segments on this node. Fails with kUsage, the same on
  // all ranks, if it does not fit. With a loaded generation, begins to renew its copies. Collective.
  static Result<std::unique_ptr<MemoryCheckpoints>> create(const Context& context);
  // Waits for the thread. Keeps the segments.
  ~MemoryCheckpoints();

  // Waits until the generation in progress, if any, has ended on all ranks. Returns how long, in seconds. Call from the
  // training thread. Collective.
  double settle();
  // Begins a generation of the state after `completed`, after settle(). Call from the training thread. Collective.
  void begin(const RunProgress& completed);
  // Call before the compute stream changes the state: makes it wait for the copies.
  void before_update();
  // Removes this rank's segments: they are of no use once the run has ended. Waits for the thread.
  void remove();

  int64_t bytes() const;  // of this rank's segments

 private:
  using Clock = std::chrono::steady_clock;
  struct Mapped;  // a segment and its registration with the device

  explicit MemoryCheckpoints(const Context& context);
  void map_own(int slot);
  void start(bool snapshot, const RunProgress& progress);
  Result<void> complete(int slot, const RunProgress& progress);
  Result<void> transfer(int slot);
  bool finish_thread();

  const std::string run_dir_, attempt_, host_;
  const uint64_t layout_;
  const Checkpointer& checkpoints_;
  const int world_rank_, world_size_, threads_;
  Job& job_;
  Device& device_;
  Stream& compute_;
  SegmentTable table_;                  // checksums change, offsets do not
  std::vector<StateBuffer::Run> runs_;  // from the device to the offset in the payload
  int64_t payload_bytes_ = 0, table_capacity_ = 0;
  int buddy_ = -1, sender_ = -1;                       // whose copies go there, whose come here
  std::vector<std::unique_ptr<Mapped>> own_, copies_;  // [slot]; no copies without a sender
  std::unique_ptr<Stream> stream_;
  std::unique_ptr<Event> state_ready_, copied_;
  bool copying_ = false;
  bool in_progress_ = false, warned_ = false;
  int slot_ = 0;                      // of the generation in progress
  int complete_ = 1;                  // slot of the last one that is complete on all ranks; at first: any
  std::future<Result<void>> thread_;  // last: it uses the members above
};

}  // namespace tri
