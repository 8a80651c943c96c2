// PeerLink: tensors one way between two ranks of a machine, as copies into the receiver's memory that copy engines
// make. A receive by NCCL that is posted ahead spins on multiprocessors until its sender comes; here streams wait on
// flags.
//
// The receiver's buffers are rings, used in turn; the sender knows them, and which one the next tensor goes to. Two
// flags carry counts of transfers:
//   ready    set in the sender's memory by the receiver: the buffer of transfer n may be written to
//   arrived  set in the receiver's memory by the sender: transfer n is there
// Nothing waits on the host.
#pragma once

#include <string>
#include <vector>

#include "kernels/core/device.h"
#include "lib/comm/comm_group.h"
#include "lib/comm/row_exchange.h"

namespace tri {

// Both ends' own parts; a link uses one of them.
struct PeerLinkEnd {
  Tensor flag;                             // (1) i32: arrived at the receiver's end, ready at the sender's
  std::vector<std::vector<Tensor>> rings;  // the receiver's buffers; none at the sender's end
};

class PeerLink {
 public:
  // Between the members of `peers`, a pair; `ends`: both members' to_text().
  PeerLink(const PeerMemory& peers, PeerLinkEnd own, const std::vector<std::string>& ends);
  // Where a member has its end in its memory, for the other one.
  static std::string to_text(const PeerMemory& peers, const PeerLinkEnd& own);

  // Into the next buffer of the receiver's `ring`. Complete on the stream when `tensor` may be overwritten.
  void send(Tensor tensor, int ring, Stream& stream);
  // `tensor` is the next buffer of `ring`, and free on `stream`. Complete when it is filled.
  void recv(Tensor tensor, int ring, Stream& stream);
  const CommCounts& counts() const { return counts_; }

 private:
  char* next_place(int ring);

  PeerLinkEnd own_;
  uint32_t* peer_flag_ = nullptr;
  std::vector<std::vector<char*>> places_;  // the receiver's rings, as this process sees them
  std::vector<size_t> next_;                // [ring]
  uint32_t transfers_ = 0;
  CommCounts counts_;
};

}  // namespace tri
