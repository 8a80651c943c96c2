#include "lib/comm/groups/group_on_stream.h"

namespace tri {

void GroupOnStream::after(Stream& producer) {
  if (&producer == stream_) return;
  producer.record(*ready_);
  stream_->wait(*ready_);
}

void GroupOnStream::before(Stream& consumer) {
  if (&consumer == stream_) return;
  stream_->record(*done_);
  const TimeCategoryScope scope(consumer, category_);
  consumer.wait(*done_);
}

// If the group uses the compute stream, that stream waits for the collective itself.
void GroupOnStream::all_gather(Tensor out, Tensor inp) {
  const TimeCategoryScope scope(*stream_, category_);
  group_->all_gather(out, inp, *stream_);
}

void GroupOnStream::reduce_scatter(Tensor out, Tensor inp) {
  const TimeCategoryScope scope(*stream_, category_);
  group_->reduce_scatter(out, inp, *stream_);
}

void GroupOnStream::all_reduce(Tensor inout, ReduceOp op) {
  const TimeCategoryScope scope(*stream_, category_);
  group_->all_reduce(inout, op, *stream_);
}

void GroupOnStream::broadcast(Tensor inout, int root) {
  const TimeCategoryScope scope(*stream_, category_);
  group_->broadcast(inout, root, *stream_);
}

void GroupOnStream::exchange(const std::vector<CommGroup::Message>& sends,
                             const std::vector<CommGroup::Message>& recvs) {
  const TimeCategoryScope scope(*stream_, category_);
  group_->exchange(sends, recvs, *stream_);
}

}  // namespace tri
