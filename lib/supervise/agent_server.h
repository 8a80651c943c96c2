// The driver's side of all agents: one socket, one epoll, no thread, no blocking calls. A peer that does not prove
// within seconds that it knows the token is dropped, and can cost no more than its share: README.md, "Who may talk".
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
    int frames_a_second = 50;          // of one agent; one that sends more is dropped
    int connections_a_second = 500;    // that are taken; others wait in the kernel
    size_t unauthenticated = 256;      // connections without a valid frame; of more the oldest is dropped
    size_t backlog_bytes = 256 << 10;  // of orders that an agent does not fetch
  };
  using Now = std::function<double()>;  // seconds

  enum class Reach { kAnyMachine, kThisMachine };  // from where agents may connect
  // Listens on `port`; 0: any free one. Error: it can't.
  static Result<std::unique_ptr<AgentServer>> open(const JobToken& token, int port, const Limits& limits, Now now,
                                                   Reach reach = Reach::kAnyMachine);
  ~AgentServer();
  AgentServer(const AgentServer&) = delete;
  AgentServer& operator=(const AgentServer&) = delete;

  int port() const { return port_; }
  // Waits no longer than this for something to happen, or until a signal comes; what agents have reported meanwhile.
  std::vector<AgentReport> poll(int milliseconds);
  // Nodes whose agents know the token and have other messages than this build, since this was last called. Their
  // connections are closed.
  std::vector<std::string> take_foreign() { return std::exchange(foreign_, {}); }
  // To the agent of `node`; false: it is not connected.
  bool send(const std::string& node, const AgentOrder& order);
  bool connected(const std::string& node) const { return agents_.count(node) > 0; }
  void drop(const std::string& node);

 private:
  struct Client {
    Descriptor socket;
    Nonce nonce{};
    std::string head;  // the agent's nonce, until it is whole
    std::unique_ptr<FrameReader> reader;
    std::unique_ptr<FrameWriter> writer;
    std::string outgoing;
    bool known = false;   // a frame of it was valid
    bool awaits = false;  // room for what is outgoing
    std::string node;
    int64_t start = 0;  // of the agent
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
