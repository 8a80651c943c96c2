// PeerChannel: a point-to-point channel between two ranks of a machine, by copies into the receiver's memory that copy
// engines run. A receive by NCCL that is posted early spins on multiprocessors until its sender arrives; here streams
// wait on flags.
//
// The receiver's buffers are rings; the sender knows them and the position of the next tensor. Two flags carry counts
// of transfers:
//   ready    set in the sender's memory by the receiver: the buffer of transfer n may be written to
//   arrived  set in the receiver's memory by the sender: transfer n has arrived
// No call waits on the host.
#pragma once

#include <vector>

#include "lib/comm/groups/stage_channel.h"
#include "lib/comm/peer/memory.h"

namespace tri {

// What a rank contributes to its end of the channel.
struct PeerChannelEnd {
  Tensor flag;                             // (1) i32: arrived at the receiver's end, ready at the sender's
  std::vector<std::vector<Tensor>> rings;  // the receiver's buffers; empty at the sender's end
};

// A member's end as byte offsets into its memory, which the members exchange.
struct PeerChannelPlaces {
  int64_t flag = 0;
  std::vector<std::vector<int64_t>> rings;
};
template <class Archive>
void fields(Archive& archive, PeerChannelPlaces& places) {
  archive(places.flag, places.rings);
}

class PeerChannel final : public StageChannel {
 public:
  // Connects the members of `peers`, a pair. `local`: this rank's end; `ends`: those of both members.
  PeerChannel(const PeerMemory& peers, PeerChannelEnd local, const std::vector<PeerChannelPlaces>& ends,
              ChannelProgress progress = {});
  static PeerChannelPlaces places_of(const PeerMemory& peers, const PeerChannelEnd& local);

  // Sends into the next buffer of the receiver's `ring`.
  void send(Tensor tensor, int ring, Stream& stream) override;
  void recv(Tensor tensor, int ring, Stream& stream) override;
  const ChannelProgress& progress() const override { return progress_; }
  const CommCounts& counts() const { return counts_; }

 private:
  char* next_place(int ring);

  PeerChannelEnd local_;
  ChannelProgress progress_;
  uint32_t* peer_flag_ = nullptr;
  std::vector<std::vector<char*>> rings_;  // the receiver's, as mapped in this process
  std::vector<size_t> next_;               // [ring]: buffers used so far
  uint32_t transfers_ = 0;
  CommCounts counts_;
};

}  // namespace tri
