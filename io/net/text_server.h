// One text over HTTP, for programs that fetch it now and then: GET /metrics. A thread of its own serves everybody, and
// never waits for anybody: who is slow is cut off after some seconds, and at once where too many have come after it.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "io/base/error.h"
#include "io/net/socket.h"

namespace tri {

class TextServer {
 public:
  static constexpr int kMostConnections = 16;
  static constexpr double kTimeout = 5;  // seconds, for a connection from its beginning to its end

  // Of its thread: the text of an answer, made for each request; it must not wait.
  using Text = std::function<std::string()>;

  // Error: it cannot listen there, because somebody else does for instance.
  static Result<std::unique_ptr<TextServer>> start(const HostAndPort& where, std::string content_type, Text text);
  ~TextServer();
  TextServer(const TextServer&) = delete;
  TextServer& operator=(const TextServer&) = delete;

  int port() const { return port_; }  // where it listens

 private:
  class Loop;
  TextServer() = default;

  int port_ = 0;
  std::unique_ptr<Loop> loop_;
};

}  // namespace tri
