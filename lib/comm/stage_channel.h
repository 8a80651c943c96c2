// StageChannel: tensors one way between two neighbouring stages, the same calls whichever transport.
#pragma once

#include "lib/comm/comm_group.h"

namespace tri {

class StageChannel {
 public:
  virtual ~StageChannel() = default;
  // The receiver's buffers are rings, used in turn: `ring` is the receiver's chunk on the way forward, 0 on the way
  // back. Complete on the stream when `tensor` may be overwritten.
  virtual void send(Tensor tensor, int ring, Stream& stream) = 0;
  // `tensor` is the next buffer of `ring`, and free on `stream`. Complete when it is filled.
  virtual void recv(Tensor tensor, int ring, Stream& stream) = 0;
  virtual const ChannelProgress& progress() const = 0;
};

// By messages of a group (NCCL, MPI), which carry their order and so need no rings.
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
