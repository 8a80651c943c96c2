// The driver's side of all agents: one socket, one epoll, no thread, no blocking calls. A peer that does not prove
// within seconds that it knows the token is dropped, and uses only limited resources: README.md, "Authentication".
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "io/base/file.h"
#include "lib/supervise/agent_messages.h"
#include "lib/supervise/frames.h"

namespace tri {

class AgentServer {
 public:
  struct Limits {
    double handshake_seconds = 5;      // from the connection to the first whole frame
    double idle_seconds = 120;         // between two frames
    size_t hello_bytes = 16 << 10;     // of the first frame
    int frames_a_second = 50;          // from one agent; an agent that sends more is dropped
    int connections_a_second = 500;    // accepted; others wait in the kernel
    size_t unauthenticated = 256;      // connections without a valid frame; above this the oldest is dropped
    size_t backlog_bytes = 256 << 10;  // of orders that an agent does not read
  };
  using Now = std::function<double()>;  // seconds

  enum class Reach { kAnyMachine, kThisMachine };  // from where agents may connect
  // Listens on `port`, or on any free port if it is 0. Fails if it can't.
  static Result<std::unique_ptr<AgentServer>> open(const JobToken& token, int port, const Limits& limits, Now now,
                                                   Reach reach = Reach::kAnyMachine);
  ~AgentServer();
  AgentServer(const AgentServer&) = delete;
  AgentServer& operator=(const AgentServer&) = delete;

  int port() const { return port_; }
  // Waits at most this long for an event or a signal. Returns the reports that have arrived.
  std::vector<AgentReport> poll(int milliseconds);
  // Returns the nodes whose agents know the token but have a different message layout than this build, since the last
  // call. Their connections are closed.
  std::vector<std::string> take_foreign() { return std::exchange(foreign_, {}); }
  // Sends an order to the agent of `node`. Returns false if it is not connected.
  bool send(const std::string& node, const AgentOrder& order);
  bool connected(const std::string& node) const { return agents_.count(node) > 0; }
  void drop(const std::string& node);

 private:
  struct Client {
    Descriptor socket;
    Nonce nonce{};
    std::string head;  // the agent's nonce, until it is complete
    std::unique_ptr<FrameReader> reader;
    std::unique_ptr<FrameWriter> writer;
    std::string outgoing;
    bool known = false;   // a valid frame has arrived
    bool awaits = false;  // socket space for `outgoing`
    std::string node;
    int64_t start = 0;  // start number of the agent
    double since = 0, last = 0, second = 0;
    int frames = 0;  // in this second
  };
  AgentServer() = default;

  void take_connections();
  bool read_from(Client& client, std::vector<AgentReport>& reports);
  bool take_frames(Client& client, std::vector<AgentReport>& reports);
  bool flush(Client& client);
  void close(int fd);
  void drop_late();
  void listen_again();
  double now() const { return now_(); }

  JobToken token_;
  Limits limits_;
  Now now_;
  Descriptor listener_, epoll_;
  int port_ = 0;
  bool listening_ = true;
  double accept_second_ = 0, checked_ = 0;
  int accepted_ = 0;                         // in this second
  std::map<int, Client> clients_;            // by descriptor
  std::map<std::string, int> agents_;        // node -> descriptor
  std::map<uint64_t, int> unauthenticated_;  // in the order of their connections
  std::map<int, uint64_t> unauthenticated_ids_;
  uint64_t next_unauthenticated_ = 0;
  std::vector<std::string> foreign_;
};

}  // namespace tri
