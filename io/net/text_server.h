// Serves one text over HTTP to programs that fetch it now and then: GET /metrics. One thread serves all connections and
// waits for none: a slow one is closed after some seconds, and at once if too many newer ones have arrived.
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
  static constexpr double kTimeout = 5;  // seconds, for a whole connection

  // Returns the text of an answer. Called on the server's thread for each request; must not wait.
  using Text = std::function<std::string()>;

  // Fails if it cannot listen there, for example because the port is in use.
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
