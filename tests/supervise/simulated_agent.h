// An agent's end of a connection, simulated by a test: it sends what real agents send, and never waits.
#pragma once

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "io/base/file.h"
#include "lib/supervise/agent_messages.h"
#include "lib/supervise/frames.h"

namespace tri {

// Returns a connection to a port of this machine, with non-blocking calls; -1: refused.
inline Descriptor connect_to_port(int port) {
  Descriptor socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const sockaddr_in address{
      .sin_family = AF_INET, .sin_port = htons(static_cast<uint16_t>(port)), .sin_addr = {htonl(INADDR_LOOPBACK)}};
  if (socket.get() < 0 || ::connect(socket.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0)
    return Descriptor();
  return socket;
}

// Returns whether the server has accepted the connection and its greeting is unread.
inline bool is_taken(const Descriptor& socket) {
  char byte = 0;
  return ::recv(socket.get(), &byte, 1, MSG_PEEK | MSG_DONTWAIT) == 1;
}

// Returns the received bytes, up to `most`; `open` becomes false if the other end has closed.
inline std::string take_bytes(int fd, size_t most, bool& open) {
  std::string bytes(most, '\0');
  const ssize_t got = ::recv(fd, bytes.data(), bytes.size(), MSG_DONTWAIT);
  open = got > 0 || (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK));
  bytes.resize(got > 0 ? static_cast<size_t>(got) : 0);
  return bytes;
}

class SimulatedAgent {
 public:
  SimulatedAgent(int port, const JobToken& token, std::string node, int64_t start = 1)
      : report{.node = std::move(node), .host = "host", .start = start},
        layout(messages_layout()),
        token_(token),
        socket_(connect_to_port(port)) {}

  AgentReport report;
  uint64_t layout;                 // of its messages, as the greeting states
  std::vector<AgentOrder> orders;  // received so far

  int fd() const { return socket_.get(); }
  bool is_open() const { return open_ && socket_.get() >= 0; }
  bool is_greeted() const { return writer_ != nullptr; }

  // Reads what has arrived and answers the greeting.
  void pump() {
    if (!is_open()) return;
    if (!writer_) {
      greeting_ += take_bytes(fd(), 24 - greeting_.size(), open_);
      if (greeting_.size() < 24) return;
      Nonce of_driver;
      std::memcpy(of_driver.data(), greeting_.data() + kGreeting.size(), sizeof of_driver);
      const Nonce own = random_nonce();
      const SipKey key = session_key(token_, of_driver, own);
      writer_ = std::make_unique<FrameWriter>(key, Direction::kToDriver);
      reader_ = std::make_unique<FrameReader>(key, Direction::kToAgent, kMaxPayload);
      send_bytes({reinterpret_cast<const char*>(own.data()), sizeof own});
      return;
    }
    reader_->feed(take_bytes(fd(), 65536, open_));
    for (std::string payload; reader_->next(payload) == FrameReader::Outcome::kFrame;)
      orders.push_back(from_bytes<AgentOrder>(payload));
  }
  std::string frame() { return writer_->frame(to_bytes(report)); }
  std::string hello() {
    said_ = true;
    return writer_->frame(
        to_bytes(AgentHello{.node = report.node, .host = report.host, .start = report.start, .layout = layout}));
  }
  // Sends a report, after the connection's hello.
  void send_report() {
    if (!said_) send_bytes(hello());
    send_bytes(frame());
  }
  void send_bytes(std::string_view bytes) {
    sent += static_cast<int64_t>(bytes.size());
    while (!bytes.empty()) {
      const ssize_t done = ::send(fd(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
      if (done <= 0) {
        open_ = false;
        return;
      }
      bytes.remove_prefix(static_cast<size_t>(done));
    }
  }
  int64_t sent = 0;  // bytes

 private:
  JobToken token_;
  Descriptor socket_;
  bool open_ = true, said_ = false;
  std::string greeting_;
  std::unique_ptr<FrameWriter> writer_;
  std::unique_ptr<FrameReader> reader_;
};

}  // namespace tri
