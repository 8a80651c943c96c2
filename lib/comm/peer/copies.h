// PeerCopyTransfers: an axis' gathers and reduces as copies into the peers' memory (peer-copy collectives), which copy
// engines run concurrently with kernels: activation rows over tp, during the GEMMs that read or compute them; buckets
// over dp.
//
//   gather   sends the local block to every peer; a GEMM reads the blocks, in splits, as they arrive
//   reduce   a GEMM computes the owners' blocks, in splits, and each is sent to its owner at once; the owner's next
//            kernel adds the parts (an operand (members, local rows, …): kernels/norm.h)
//
// All members have the same memory layout and issue the same operations in the same order; each operation sends one
// block from every member to every other one. Two flags per pair of members carry the counts of operations:
//   ready    set in the sender's memory by the receiver: its part of operation n may be written to
//   arrived  set in the receiver's memory by the sender: the block of operation n has arrived
// No call waits on the host or calls a collective. A member's copies are sequential, and at any time its neighbours
// send to other members: concurrent copies would share the links and all finish last.
#pragma once

#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include "kernels/core/arena.h"
#include "lib/comm/groups/axis_transfers.h"
#include "lib/comm/peer/memory.h"

namespace tri {

struct PeerCopyTensors {
  Tensor flags;                  // (2, members) i32: ready, arrived; one column per peer
  std::vector<Tensor> incoming;  // (elements): buffers for the parts of a reduce, used round-robin
};
// For reduces of up to `elements`; `buffers`: reduces whose parts are held at once.
PeerCopyTensors allocate_peer_copies(const std::string& name, int members, int64_t elements, Dtype dtype, int buffers,
                                     Arena& arena);

class PeerCopyTransfers final : public AxisTransfers {
 public:
  // Copies run on `copies`; `arrivals` only waits for the peers' blocks.
  PeerCopyTransfers(GroupOnStream collectives, PeerMemory peers, PeerCopyTensors tensors, Stream& copies,
                    Stream& arrivals, Device& device, ChannelProgress progress = {});

  CommCounts counts() const override;
  void read_progress(Stream& stream, HostBuffer<uint32_t>& words) override;
  // Hardly ever waits, since what peers sent at the same time has arrived; so the timeline gets no marks here.
  void wait_until_read(Stream& stream) override;
  void begin_gather(Tensor rows, Stream& stream) override;
  void start_gather(Tensor rows, Stream& stream) override;
  bool gathering(Tensor rows) const override;
  std::vector<RowSplit> splits(Tensor rows, OverlapSplit split) const override;
  void wait_split(Tensor rows, const RowSplit& split, Stream& stream) override;
  void finish_gather(Tensor rows, Stream& stream) override;
  std::vector<RowBlock> begin_reduce(Tensor rows, OverlapSplit split, Stream& stream) override;
  void send(const RowBlock& block, Stream& stream) override;
  Tensor finish_reduce(Stream& stream) override;
  std::string gather_name(OverlapSplit split) const override;
  std::string reduce_name(OverlapSplit split) const override;
  std::unique_ptr<AxisTransfers> null_transfers(GroupOnStream null, Device& device) const override;

 private:
  struct Gather {
    void* rows = nullptr;                         // null: not in use
    std::vector<std::unique_ptr<Event>> arrived;  // [member]
    std::vector<bool> waited;                     // [member]: the caller's stream has waited for its block
  };

  void begin(ChannelOperation operation, int64_t bytes, Stream& stream);
  void push(int peer, void* local_place, const void* src, int64_t bytes);
  void count_sent(int blocks, Stream& stream);
  void count_arrived(uint32_t operation);
  Tensor incoming(int member) const;  // this member's part of the last reduce
  uint32_t* flag(int row, int member) const;
  std::vector<int> arrival_order() const;  // members; this one first
  Gather* find(Tensor rows);

  PeerMemory peers_;
  PeerCopyTensors tensors_;
  Stream& copies_;
  Stream& arrivals_;
  Device& device_;
  std::unique_ptr<Event> made_;     // the caller has written what is to be sent, or no longer needs what is overwritten
  std::unique_ptr<Event> sent_;     // all sends have been read from this rank's memory
  std::unique_ptr<Event> reduced_;  // the parts of a reduce have arrived
  CommCounts counts_;               // gathers and reduces by copies
  ChannelProgress progress_;
  // The last operation whose readiness, copies and arrivals the streams were given. Separate from the training thread's
  // counts, since another thread calls read_progress().
  std::atomic<uint32_t> begun_{0}, given_{0}, awaited_{0};
  int unsent_ = 0;           // blocks of the operation that were not sent yet
  uint32_t completing_ = 0;  // the last operation whose arrivals are waited for
  uint32_t operation_ = 0;
  std::vector<Gather> gathers_;
  uint32_t reduce_ = 0;     // operation of the last reduce
  bool direct_ = false;     // ... its split
  Tensor part_;             // ... and the shape of a part
  size_t next_buffer_ = 0;  // index into the incoming buffers
};

}  // namespace tri
