#include "lib/comm/peer/windows.h"

#include <utility>

#include "kernels/ops.h"

namespace tri {

PeerWindows::PeerWindows(PeerMemory peers, Tensor flags, Stream& copies, Device& device, TimeCategory category,
                         ChannelProgress progress, ChannelProgress copying)
    : peers_(std::move(peers)),
      flags_(flags),
      copies_(copies),
      made_(device.make_event()),
      sent_(device.make_event()),
      category_(category),
      progress_(progress),
      copying_(copying) {
  TRI_REQUIRE(peers_.size() <= PeerPlaces::kMost && flags_.numel() == kFlagRows * peers_.size(), "{} members, flags {}",
              peers_.size(), flags_.shape_text());
}

PeerPlaces PeerWindows::places(Tensor local) const {
  PeerPlaces places{.data = {}, .members = size()};
  for (int member = 0; member < size(); ++member)
    places.data[static_cast<size_t>(member)] = peers_.at(member, static_cast<char*>(local.data));
  return places;
}

void PeerWindows::arrive(Stream& stream, int64_t bytes) {
  ++arrivals_;
  progress_.enqueue(ChannelOperation::kExchange, bytes);
  for (int step = 1; step < size(); ++step)
    stream.set_flag(peers_.at((rank() + step) % size(), flag(kBarrier, rank())), arrivals_);
  progress_.joined(stream);
}

void PeerWindows::wait(Stream& stream) {
  const TimeCategoryScope scope(stream, category_);
  for (int step = 1; step < size(); ++step) stream.wait_flag(flag(kBarrier, (rank() + step) % size()), arrivals_);
  progress_.completed(stream);
}

void PeerWindows::start_copies(const std::vector<Tensor>& blocks, Stream& stream) {
  ++copied_;
  int64_t bytes = 0;
  for (const Tensor& block : blocks) bytes += block.bytes();
  copying_.enqueue(ChannelOperation::kAllGather, bytes * (size() - 1));
  stream.record(*made_);
  copies_.wait(*made_);
  copying_.joined(copies_);
  for (int step = 1; step < size(); ++step) {
    const int peer = (rank() + step) % size();
    for (const Tensor& block : blocks)
      copies_.copy(peers_.at(peer, static_cast<char*>(block.data)), block.data, block.bytes());
    copies_.set_flag(peers_.at(peer, flag(kCopied, rank())), copied_);
  }
  copying_.sent(copies_);
  copies_.record(*sent_);
}

void PeerWindows::finish_copies(Stream& stream) {
  const TimeCategoryScope scope(stream, category_);
  stream.wait(*sent_);
  for (int step = 1; step < size(); ++step) stream.wait_flag(flag(kCopied, (rank() + step) % size()), copied_);
  copying_.completed(stream);
  copying_.whole(copying_.last());
}

void PeerWindows::start_fetch(const FetchRows& rows, Stream& stream) {
  stream.record(*made_);
  copies_.wait(*made_);
  fetch_rows(rows, copies_);
  copies_.record(*sent_);
}

void PeerWindows::finish_fetch(Stream& stream) {
  const TimeCategoryScope scope(stream, category_);
  stream.wait(*sent_);
}

}  // namespace tri
