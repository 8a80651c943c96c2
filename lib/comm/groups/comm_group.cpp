#include "lib/comm/groups/comm_group.h"

#include "kernels/core/profile.h"

namespace tri {

// Runs one operation and reports it to the observer and to the progress marker.
template <class Transfer>
void CommGroup::transfer(ChannelOperation operation, int64_t bytes, Stream& stream, const Transfer& run) {
  counts_.bytes += bytes;
  progress_.enqueue(operation, bytes);
  progress_.joined(stream);
  const OpScope scope(stream, enum_name(operation).data());
  run();
  progress_.completed(stream);
}

void CommGroup::all_gather(Tensor out, Tensor inp, Stream& stream) {
  TRI_REQUIRE(out.dtype == inp.dtype && out.numel() == size_ * inp.numel(),
              "{}: all-gather of {} into {}: types or sizes do not fit", name_, inp.shape_text(), out.shape_text());
  ++counts_.all_gathers;
  transfer(ChannelOperation::kAllGather, out.bytes() - inp.bytes(), stream, [&] { do_all_gather(out, inp, stream); });
}

void CommGroup::reduce_scatter(Tensor out, Tensor inp, Stream& stream) {
  TRI_REQUIRE(out.dtype == inp.dtype && inp.numel() == size_ * out.numel(),
              "{}: reduce-scatter of {} into {}: types or sizes do not fit", name_, inp.shape_text(), out.shape_text());
  ++counts_.reduce_scatters;
  transfer(ChannelOperation::kReduceScatter, inp.bytes() - out.bytes(), stream,
           [&] { do_reduce_scatter(out, inp, stream); });
}

void CommGroup::all_reduce(Tensor inout, ReduceOp op, Stream& stream) {
  ++counts_.all_reduces;
  transfer(ChannelOperation::kAllReduce, size_ > 1 ? inout.bytes() : 0, stream,
           [&] { do_all_reduce(inout, op, stream); });
}

void CommGroup::broadcast(Tensor inout, int root, Stream& stream) {
  TRI_REQUIRE(root >= 0 && root < size_, "{}: broadcast from root {} in a group of {}", name_, root, size_);
  ++counts_.broadcasts;
  transfer(ChannelOperation::kBroadcast, size_ > 1 ? inout.bytes() : 0, stream,
           [&] { do_broadcast(inout, root, stream); });
}

void CommGroup::send(Tensor tensor, int peer, Stream& stream) {
  TRI_REQUIRE(peer >= 0 && peer < size_ && peer != rank_, "{}: send to peer {} in a group of {}", name_, peer, size_);
  ++counts_.sends;
  transfer(ChannelOperation::kSend, tensor.bytes(), stream, [&] { do_send(tensor, peer, stream); });
}

void CommGroup::recv(Tensor tensor, int peer, Stream& stream) {
  TRI_REQUIRE(peer >= 0 && peer < size_ && peer != rank_, "{}: receive from peer {} in a group of {}", name_, peer,
              size_);
  ++counts_.recvs;
  transfer(ChannelOperation::kReceive, tensor.bytes(), stream, [&] { do_recv(tensor, peer, stream); });
}

void CommGroup::exchange(const std::vector<Message>& sends, const std::vector<Message>& recvs, Stream& stream) {
  int64_t bytes = 0;
  for (const auto* messages : {&sends, &recvs})
    for (const Message& message : *messages)
      TRI_REQUIRE(message.peer >= 0 && message.peer < size_ && message.peer != rank_,
                  "{}: exchange with peer {} in a group of {}", name_, message.peer, size_);
  for (const Message& message : sends) bytes += message.tensor.bytes();
  ++counts_.exchanges;
  transfer(ChannelOperation::kExchange, bytes, stream, [&] { do_exchange(sends, recvs, stream); });
}

void CommGroup::do_exchange(const std::vector<Message>&, const std::vector<Message>&, Stream&) {
  TRI_REQUIRE(false, "{}: this kind of group has no exchange", name_);
}

namespace {

class SelfGroup final : public CommGroup {
 public:
  explicit SelfGroup(const std::string& name) : CommGroup(name, 0, 1) {}

 private:
  void do_all_gather(Tensor out, Tensor inp, Stream& stream) override {
    if (out.data != inp.data) stream.copy(out.data, inp.data, inp.bytes());
  }
  void do_reduce_scatter(Tensor out, Tensor inp, Stream& stream) override { do_all_gather(out, inp, stream); }
  void do_all_reduce(Tensor, ReduceOp, Stream&) override {}
  void do_exchange(const std::vector<Message>&, const std::vector<Message>&, Stream&) override {}  // there is no peer
  void do_broadcast(Tensor, int, Stream&) override {}
  void do_send(Tensor, int, Stream&) override { TRI_REQUIRE(false, "{}: send in a group of one", name()); }
  void do_recv(Tensor, int, Stream&) override { TRI_REQUIRE(false, "{}: receive in a group of one", name()); }
};

}  // namespace

std::unique_ptr<CommGroup> make_self_group(const std::string& name) { return std::make_unique<SelfGroup>(name); }

}  // namespace tri
