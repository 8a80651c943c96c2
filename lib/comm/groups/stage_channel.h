// StageChannel: one-way transfers of tensors between two neighbouring stages, with the same calls for every transport.
// The sender and the receiver call in the same order, with tensors of the same size. Calls only enqueue. Throws Fatal
// (kComm) if a transfer fails. Threads: call only from the training thread.
#pragma once

#include "lib/comm/groups/comm_group.h"

namespace tri {

class StageChannel {
 public:
  virtual ~StageChannel() = default;
  // Sends into the next buffer of the receiver's ring: `ring` is the receiver's chunk in the forward direction, 0 in
  // the backward direction. Complete on the stream when `tensor` may be overwritten.
  virtual void send(Tensor tensor, int ring, Stream& stream) = 0;
  // Receives into `tensor`, the next buffer of `ring`, which must be free on `stream`. Complete when it is filled.
  virtual void recv(Tensor tensor, int ring, Stream& stream) = 0;
  virtual const ChannelProgress& progress() const = 0;
};

// Uses the messages of a group (NCCL, MPI), which are ordered and so need no rings.
class MessageChannel final : public StageChannel {
 public:
  // To or from member `peer` of `group`.
  MessageChannel(CommGroup& group, int peer) : group_(group), peer_(peer) {}
  void send(Tensor tensor, int, Stream& stream) override { group_.send(tensor, peer_, stream); }
  void recv(Tensor tensor, int, Stream& stream) override { group_.recv(tensor, peer_, stream); }
  const ChannelProgress& progress() const override { return group_.progress(); }

 private:
  CommGroup& group_;
  const int peer_;
};

}  // namespace tri
