// Collectives among ranks of one process, for tests without MPI, under ThreadSanitizer and with delays. Each rank's
// stream is a thread; the threads synchronise in every operation.
#pragma once

#include <barrier>
#include <cstring>
#include <memory>
#include <vector>

#include "kernels/cpu/device.h"
#include "lib/comm/groups/comm_group.h"

namespace tri {

// The state that the members of one group share.
struct RendezvousPoint {
  explicit RendezvousPoint(int size)
      : barrier(size), shown(static_cast<size_t>(size)), sends(static_cast<size_t>(size)) {}
  std::barrier<> barrier;
  std::vector<const char*> shown;  // [member]: readable by the others until all have synchronised again
  std::vector<const std::vector<CommGroup::Message>*> sends;  // [member]: the same, of an exchange
};

// Supports f32, and only all-gathers, reduce-scatters and exchanges.
class LocalCollectives final : public CommGroup {
 public:
  LocalCollectives(int rank, int size, std::shared_ptr<RendezvousPoint> place)
      : CommGroup("local", rank, size), place_(std::move(place)) {}

 private:
  void do_all_gather(Tensor out, Tensor inp, Stream& stream) override {
    cpu_stream(stream).submit([=, this] {
      synchronize(inp.data);
      for (int r = 0; r < size(); ++r)
        if (r != rank())
          std::memcpy(static_cast<char*>(out.data) + r * inp.bytes(), shown(r), static_cast<size_t>(inp.bytes()));
      place_->barrier.arrive_and_wait();
    });
  }
  void do_reduce_scatter(Tensor out, Tensor inp, Stream& stream) override {
    cpu_stream(stream).submit([=, this] {
      synchronize(inp.data);
      std::vector<float> sum(static_cast<size_t>(out.numel()));
      for (int r = 0; r < size(); ++r) {
        const auto* other = reinterpret_cast<const float*>(shown(r) + rank() * out.bytes());
        for (size_t i = 0; i < sum.size(); ++i) sum[i] += other[i];
      }
      place_->barrier.arrive_and_wait();  // before a member overwrites data that the others read
      std::memcpy(out.data, sum.data(), static_cast<size_t>(out.bytes()));
    });
  }
  void do_all_reduce(Tensor, ReduceOp, Stream&) override { TRI_REQUIRE(false, "gathers and reduces only"); }
  void do_broadcast(Tensor, int, Stream&) override { TRI_REQUIRE(false, "gathers and reduces only"); }
  void do_send(Tensor, int, Stream&) override { TRI_REQUIRE(false, "gathers and reduces only"); }
  void do_recv(Tensor, int, Stream&) override { TRI_REQUIRE(false, "gathers and reduces only"); }

  void do_exchange(const std::vector<Message>& sends, const std::vector<Message>& recvs, Stream& stream) override {
    cpu_stream(stream).submit([=, this] {
      place_->sends[static_cast<size_t>(rank())] = &sends;
      place_->barrier.arrive_and_wait();
      std::vector<size_t> next(static_cast<size_t>(size()));  // [peer]: its message that is looked at
      for (const Message& recv : recvs) {
        const std::vector<Message>& from = *place_->sends[static_cast<size_t>(recv.peer)];
        size_t& at = next[static_cast<size_t>(recv.peer)];
        while (from.at(at).peer != rank()) ++at;
        TRI_REQUIRE(from[at].tensor.bytes() == recv.tensor.bytes(), "sent {}, received {}",
                    from[at].tensor.shape_text(), recv.tensor.shape_text());
        std::memcpy(recv.tensor.data, from[at++].tensor.data, static_cast<size_t>(recv.tensor.bytes()));
      }
      place_->barrier.arrive_and_wait();
    });
  }

  void synchronize(const void* data) {
    place_->shown[static_cast<size_t>(rank())] = static_cast<const char*>(data);
    place_->barrier.arrive_and_wait();
  }
  const char* shown(int member) const { return place_->shown[static_cast<size_t>(member)]; }

  std::shared_ptr<RendezvousPoint> place_;
};

}  // namespace tri
