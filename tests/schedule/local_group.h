// A pipeline of threads: CommGroups whose members are in one process, with rendezvous semantics: a send ends when its
// receive has taken the data. For tests of the executor without MPI, under ThreadSanitizer and with delays.
#pragma once

#include <condition_variable>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>

#include "kernels/cpu/device.h"
#include "lib/comm/groups/comm_group.h"

namespace tri {

// The state that the members of one local group share.
class LocalExchange {
 public:
  void send(int from, int to, const void* data, int64_t bytes) {
    std::unique_lock lock(mutex_);
    Message message{data, bytes, false};
    queues_[{from, to}].push_back(&message);
    changed_.notify_all();
    changed_.wait(lock, [&] { return message.taken; });
  }
  void recv(int from, int to, void* data, int64_t bytes) {
    std::unique_lock lock(mutex_);
    auto& queue = queues_[{from, to}];
    changed_.wait(lock, [&] { return !queue.empty(); });
    Message* message = queue.front();
    queue.pop_front();
    TRI_REQUIRE(message->bytes == bytes, "sent {} bytes, received {}", message->bytes, bytes);
    std::memcpy(data, message->data, static_cast<size_t>(bytes));
    message->taken = true;
    changed_.notify_all();
  }

 private:
  struct Message {
    const void* data;
    int64_t bytes;
    bool taken;
  };
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<std::pair<int, int>, std::deque<Message*>> queues_;
};

class LocalGroup final : public CommGroup {
 public:
  // `delay` runs before every transfer, on the stream that performs it.
  LocalGroup(int rank, int size, std::shared_ptr<LocalExchange> exchange, std::function<void()> delay)
      : CommGroup("local", rank, size), exchange_(std::move(exchange)), delay_(std::move(delay)) {}

 private:
  void do_send(Tensor tensor, int peer, Stream& stream) override {
    cpu_stream(stream).submit([=, this] {
      delay_();
      exchange_->send(rank(), peer, tensor.data, tensor.bytes());
    });
  }
  void do_recv(Tensor tensor, int peer, Stream& stream) override {
    cpu_stream(stream).submit([=, this] {
      delay_();
      exchange_->recv(peer, rank(), tensor.data, tensor.bytes());
    });
  }
  void do_all_gather(Tensor, Tensor, Stream&) override { TRI_REQUIRE(false, "point to point only"); }
  void do_reduce_scatter(Tensor, Tensor, Stream&) override { TRI_REQUIRE(false, "point to point only"); }
  void do_all_reduce(Tensor, ReduceOp, Stream&) override { TRI_REQUIRE(false, "point to point only"); }
  void do_broadcast(Tensor, int, Stream&) override { TRI_REQUIRE(false, "point to point only"); }

  std::shared_ptr<LocalExchange> exchange_;
  std::function<void()> delay_;
};

}  // namespace tri
