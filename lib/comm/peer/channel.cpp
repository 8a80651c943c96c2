#include "lib/comm/peer/channel.h"

#include "lib/comm/peer/peer_copy.h"

namespace tri {

PeerChannelPlaces PeerChannel::places_of(const PeerMemory& peers, const PeerChannelEnd& local) {
  const auto offset = [&](const Tensor& tensor) {
    return int64_t{static_cast<char*>(tensor.data) - peers.base[static_cast<size_t>(peers.rank)]};
  };
  PeerChannelPlaces places{.flag = offset(local.flag)};
  for (const auto& ring : local.rings) {
    auto& offsets = places.rings.emplace_back();
    for (const Tensor& buffer : ring) offsets.push_back(offset(buffer));
  }
  return places;
}

PeerChannel::PeerChannel(const PeerMemory& peers, PeerChannelEnd local, const std::vector<PeerChannelPlaces>& ends,
                         ChannelProgress progress)
    : local_(std::move(local)), progress_(progress) {
  TRI_REQUIRE(peers.size() == 2 && ends.size() == 2, "a channel connects 2 ranks, not {}", peers.size());
  const auto other = static_cast<size_t>(1 - peers.rank);
  peer_flag_ = reinterpret_cast<uint32_t*>(peers.base[other] + ends[other].flag);
  const size_t receiver = local_.rings.empty() ? other : static_cast<size_t>(peers.rank);
  for (const auto& offsets : ends[receiver].rings) {
    auto& ring = rings_.emplace_back();
    for (const int64_t offset : offsets) ring.push_back(peers.base[receiver] + offset);
  }
  next_.assign(rings_.size(), 0);
}

char* PeerChannel::next_place(int ring) {
  const auto& buffers = rings_.at(static_cast<size_t>(ring));
  TRI_REQUIRE(!buffers.empty(), "ring {} of a channel has no buffers", ring);
  return buffers[next_[static_cast<size_t>(ring)]++ % buffers.size()];
}

void PeerChannel::send(Tensor tensor, int ring, Stream& stream) {
  char* const place = next_place(ring);
  ++counts_.sends;
  counts_.bytes += tensor.bytes();
  ++transfers_;
  progress_.enqueue(ChannelOperation::kSend, tensor.bytes());
  progress_.joined(stream);
  copy_to_peer({.to = place,
                .from = tensor.data,
                .bytes = tensor.bytes(),
                .ready = reinterpret_cast<uint32_t*>(local_.flag.as<int32_t>()),
                .arrived = peer_flag_,
                .number = transfers_},
               stream);
  progress_.completed(stream);
}

void PeerChannel::recv(Tensor tensor, int ring, Stream& stream) {
  TRI_REQUIRE(next_place(ring) == tensor.data, "transfer {} of ring {} was received out of order", transfers_ + 1,
              ring);
  ++counts_.recvs;
  counts_.bytes += tensor.bytes();
  ++transfers_;
  progress_.enqueue(ChannelOperation::kReceive, tensor.bytes());
  stream.set_flag(peer_flag_, transfers_);
  progress_.joined(stream);
  stream.wait_flag(reinterpret_cast<uint32_t*>(local_.flag.as<int32_t>()), transfers_);
  progress_.completed(stream);
}

}  // namespace tri
