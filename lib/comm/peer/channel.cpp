#include "lib/comm/peer/channel.h"

#include <sstream>

#include "lib/comm/transfer_hook.h"

namespace tri {

std::string PeerChannel::to_text(const PeerMemory& peers, const PeerChannelEnd& local) {
  const auto offset = [&](const Tensor& tensor) {
    return static_cast<char*>(tensor.data) - peers.base[static_cast<size_t>(peers.rank)];
  };
  std::string text = fmt::format("{} {}", offset(local.flag), local.rings.size());
  for (const auto& ring : local.rings) {
    text += fmt::format(" {}", ring.size());
    for (const Tensor& buffer : ring) text += fmt::format(" {}", offset(buffer));
  }
  return text;
}

PeerChannel::PeerChannel(const PeerMemory& peers, PeerChannelEnd local, const std::vector<std::string>& ends)
    : local_(std::move(local)) {
  TRI_REQUIRE(peers.size() == 2 && ends.size() == 2, "a channel between {} ranks", peers.size());
  const int self = peers.rank, other = 1 - self;
  const auto read_rings = [&](int member, int64_t& flag) {
    std::istringstream words(ends[static_cast<size_t>(member)]);
    char* base = peers.base[static_cast<size_t>(member)];
    size_t rings = 0;
    words >> flag >> rings;
    for (size_t r = 0; r < rings; ++r) {
      size_t count = 0;
      words >> count;
      auto& places = places_.emplace_back();
      for (size_t i = 0; i < count; ++i) {
        int64_t at = 0;
        words >> at;
        places.push_back(base + at);
      }
    }
    TRI_REQUIRE(!words.fail(), "a peer's end of a channel: {}", ends[static_cast<size_t>(member)]);
  };
  int64_t flag = 0, local_flag = 0;
  read_rings(other, flag);
  peer_flag_ = reinterpret_cast<uint32_t*>(peers.base[static_cast<size_t>(other)] + flag);
  if (!local_.rings.empty()) read_rings(self, local_flag);
  next_.assign(places_.size(), 0);
}

char* PeerChannel::next_place(int ring) {
  const auto& places = places_.at(static_cast<size_t>(ring));
  TRI_REQUIRE(!places.empty(), "ring {} of a channel has no buffers", ring);
  return places[next_[static_cast<size_t>(ring)]++ % places.size()];
}

void PeerChannel::send(Tensor tensor, int ring, Stream& stream) {
  ++counts_.sends;
  counts_.bytes += tensor.bytes();
  ++transfers_;
  before_transfer(stream);
  stream.wait_flag(reinterpret_cast<uint32_t*>(local_.flag.as<int32_t>()), transfers_);
  stream.copy(next_place(ring), tensor.data, tensor.bytes());
  stream.set_flag(peer_flag_, transfers_);
}

void PeerChannel::recv(Tensor tensor, int ring, Stream& stream) {
  ++counts_.recvs;
  counts_.bytes += tensor.bytes();
  ++transfers_;
  TRI_REQUIRE(next_place(ring) == tensor.data, "transfer {} of ring {} received out of turn", transfers_, ring);
  before_transfer(stream);
  stream.set_flag(peer_flag_, transfers_);
  stream.wait_flag(reinterpret_cast<uint32_t*>(local_.flag.as<int32_t>()), transfers_);
}

}  // namespace tri
