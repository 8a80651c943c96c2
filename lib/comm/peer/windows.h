// PeerWindows: tensors in the memory of a group's members on one machine, which copies and kernels of other members
// write and read, and what orders the members' streams. All members have the same memory layout.
#pragma once

#include "kernels/core/timeline.h"
#include "kernels/peer_rows.h"
#include "lib/comm/groups/channel_progress.h"
#include "lib/comm/peer/memory.h"

namespace tri {

// Threads: call only from the training thread.
class PeerWindows {
 public:
  // `flags` (kFlagRows, members) i32, zero at the start: member m sets column m of the others. `copies`: the stream of
  // copies. `category`: of the waits. `progress`: of barriers; `copying`: of copies, a channel of kind kCopies.
  static constexpr int kFlagRows = 2;
  PeerWindows(PeerMemory peers, Tensor flags, Stream& copies, Device& device, TimeCategory category,
              ChannelProgress progress = {}, ChannelProgress copying = {});

  int rank() const { return peers_.rank; }
  int size() const { return peers_.size(); }
  // Returns the places of `local`, a tensor of this rank, in all members' memory.
  PeerPlaces places(Tensor local) const;

  // A barrier on the device. arrive() reports to the members that `stream` has done its earlier work; wait() holds
  // its later work until all members have reported. Other work may be enqueued in between. Neither waits on the host.
  // Collective: all members make the same calls in the same order, arrive() and wait() by turns. `bytes`: that this
  // rank has moved.
  void arrive(Stream& stream, int64_t bytes = 0);
  void wait(Stream& stream);

  // Copies `blocks`, which `stream` has written, to the same places in the other members' memory, concurrently with
  // what follows on `stream`: copy engines run them. The members no longer use the places. finish_copies() holds
  // `stream`'s later work until the blocks of all members have arrived here, and this rank's have been read.
  // Collective, as above.
  void start_copies(const std::vector<Tensor>& blocks, Stream& stream);
  void finish_copies(Stream& stream);

  // Enqueues `rows` after `stream`'s earlier work, which includes a wait(), on the stream of copies, concurrently with
  // its later work. After finish_fetch(), `stream` waits until the rows are here. No copies may be in progress.
  void start_fetch(const FetchRows& rows, Stream& stream);
  void finish_fetch(Stream& stream);

 private:
  enum FlagRow { kBarrier, kCopied };
  uint32_t* flag(FlagRow row, int member) const {
    return reinterpret_cast<uint32_t*>(flags_.as<int32_t>()) + row * size() + member;
  }

  const PeerMemory peers_;
  const Tensor flags_;
  Stream& copies_;
  const std::unique_ptr<Event> made_, sent_;
  const TimeCategory category_;
  ChannelProgress progress_, copying_;
  uint32_t arrivals_ = 0, copied_ = 0;
};

}  // namespace tri
