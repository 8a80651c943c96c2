#include "lib/supervise/agent_server.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>

#include "io/net/socket.h"

namespace tri {
namespace {

constexpr size_t kChunk = 16 << 10;  // bytes read from a client at a time, so that no client delays the others
constexpr int kAcceptsATurn = 32;
constexpr int kBacklog = 4096;

void watch(int epoll, int operation, int fd, uint32_t events) {
  epoll_event event{.events = events, .data = {.fd = fd}};
  ::epoll_ctl(epoll, operation, fd, &event);
}

}  // namespace

Result<std::unique_ptr<AgentServer>> AgentServer::open(const JobToken& token, int port, const Limits& limits, Now now,
                                                       Reach reach) {
  std::unique_ptr<AgentServer> server(new AgentServer);
  server->token_ = token;
  server->limits_ = limits;
  server->now_ = std::move(now);
  // One socket for both families; IPv4 alone on the loopback, or if there is no IPv6.
  const auto network_port = htons(static_cast<uint16_t>(port));
  Result<Descriptor> listener = usage_error("");
  if (reach != Reach::kThisMachine) {
    const sockaddr_in6 any{.sin6_family = AF_INET6, .sin6_port = network_port, .sin6_addr = in6addr_any};
    listener = listen_at(reinterpret_cast<const sockaddr&>(any), sizeof any, kBacklog);
  }
  const bool lacks_ipv6 = !listener && (reach == Reach::kThisMachine || listener.error().os_error == EAFNOSUPPORT ||
                                        listener.error().os_error == EADDRNOTAVAIL);
  if (lacks_ipv6) {
    const in_addr_t from = reach == Reach::kThisMachine ? INADDR_LOOPBACK : INADDR_ANY;
    const sockaddr_in any{.sin_family = AF_INET, .sin_port = network_port, .sin_addr = {htonl(from)}};
    listener = listen_at(reinterpret_cast<const sockaddr&>(any), sizeof any, kBacklog);
  }
  if (!listener) return system_error(listener.error().os_error, "cannot listen on port {} for the agents", port);
  server->listener_ = std::move(listener).value();
  server->port_ = port_of(server->listener_.get());
  server->epoll_ = Descriptor(::epoll_create1(EPOLL_CLOEXEC));
  if (server->epoll_.get() < 0) return system_error(errno, "cannot create an epoll instance for the agents");
  watch(server->epoll_.get(), EPOLL_CTL_ADD, server->listener_.get(), EPOLLIN);
  return server;
}

AgentServer::~AgentServer() = default;

// Accepts up to the limit per second; the listener then pauses until the next second.
void AgentServer::take_connections() {
  if (now() - accept_second_ >= 1) {
    accept_second_ = now();
    accepted_ = 0;
  }
  for (int i = 0; i < kAcceptsATurn; ++i) {
    if (accepted_ >= limits_.connections_a_second) {
      watch(epoll_.get(), EPOLL_CTL_DEL, listener_.get(), 0);
      listening_ = false;
      return;
    }
    Descriptor socket(::accept4(listener_.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
    if (socket.get() < 0) return;
    ++accepted_;
    if (unauthenticated_.size() >= limits_.unauthenticated) close(unauthenticated_.begin()->second);
    const int fd = socket.get(), on = 1;
    ::setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    Client client{.socket = std::move(socket), .nonce = random_nonce(), .since = now(), .last = now()};
    client.outgoing = std::string(kGreeting);
    client.outgoing.append(reinterpret_cast<const char*>(client.nonce.data()), sizeof client.nonce);
    watch(epoll_.get(), EPOLL_CTL_ADD, fd, EPOLLIN);
    unauthenticated_ids_[fd] = next_unauthenticated_;
    unauthenticated_[next_unauthenticated_++] = fd;
    auto& kept = clients_.insert_or_assign(fd, std::move(client)).first->second;
    if (!flush(kept)) close(fd);
  }
}

void AgentServer::listen_again() {
  if (listening_ || now() - accept_second_ < 1) return;
  watch(epoll_.get(), EPOLL_CTL_ADD, listener_.get(), EPOLLIN);
  listening_ = true;
}

void AgentServer::close(int fd) {
  if (const auto id = unauthenticated_ids_.find(fd); id != unauthenticated_ids_.end()) {
    unauthenticated_.erase(id->second);
    unauthenticated_ids_.erase(id);
  }
  const auto at = clients_.find(fd);
  if (at == clients_.end()) return;
  const auto agent = agents_.find(at->second.node);
  if (agent != agents_.end() && agent->second == fd) agents_.erase(agent);
  clients_.erase(at);
}

void AgentServer::drop(const std::string& node) {
  if (const auto at = agents_.find(node); at != agents_.end()) close(at->second);
}

// At most once a second, drops clients that did not authenticate in time and clients that have become silent.
void AgentServer::drop_late() {
  if (now() - checked_ < 1) return;
  checked_ = now();
  std::vector<int> late;
  for (const auto& [fd, client] : clients_)
    if (client.known ? now() - client.last > limits_.idle_seconds : now() - client.since > limits_.handshake_seconds)
      late.push_back(fd);
  for (const int fd : late) close(fd);
}

bool AgentServer::flush(Client& client) {
  while (!client.outgoing.empty()) {
    const ssize_t sent =
        ::send(client.socket.get(), client.outgoing.data(), client.outgoing.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent < 0) {
      if (errno == EINTR) continue;
      if (errno != EAGAIN && errno != EWOULDBLOCK) return false;
      break;
    }
    client.outgoing.erase(0, static_cast<size_t>(sent));
  }
  if (client.awaits == client.outgoing.empty()) {
    client.awaits = !client.awaits;
    watch(epoll_.get(), EPOLL_CTL_MOD, client.socket.get(), client.awaits ? EPOLLIN | EPOLLOUT : EPOLLIN);
  }
  return client.outgoing.size() <= limits_.backlog_bytes;
}

bool AgentServer::take_frames(Client& client, std::vector<AgentReport>& reports) {
  std::string payload;
  while (true) {
    const auto outcome = client.reader->next(payload);
    if (outcome == FrameReader::Outcome::kIncomplete) return true;
    if (outcome == FrameReader::Outcome::kRefused) return false;
    const int fd = client.socket.get();
    if (!client.known) {
      const AgentHello hello = hello_from(payload);
      if (hello.layout != messages_layout()) {
        foreign_.push_back(hello.node);
        return false;
      }
      const auto other = agents_.find(hello.node);
      if (other != agents_.end() && clients_.at(other->second).start > hello.start) return false;
      client.known = true;
      client.start = hello.start;
      client.node = hello.node;
      client.reader->set_limit(kMaxPayload);
      unauthenticated_.erase(unauthenticated_ids_.at(fd));
      unauthenticated_ids_.erase(fd);
      drop(client.node);  // a restarted agent replaces the previous one
      agents_[client.node] = fd;
      client.last = now();
      continue;
    }
    if (now() - client.second >= 1) {
      client.second = now();
      client.frames = 0;
    }
    if (++client.frames > limits_.frames_a_second) return false;
    AgentReport report;
    try {
      report = from_bytes<AgentReport>(payload);
    } catch (const Fatal&) {
      return false;
    }
    if (report.node != client.node) return false;
    client.last = now();
    reports.push_back(std::move(report));
  }
}

// Returns false if the connection has ended.
bool AgentServer::read_from(Client& client, std::vector<AgentReport>& reports) {
  std::array<char, kChunk> chunk;
  const ssize_t got = ::recv(client.socket.get(), chunk.data(), chunk.size(), MSG_DONTWAIT);
  if (got == 0) return false;
  if (got < 0) return errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR;
  std::string_view bytes(chunk.data(), static_cast<size_t>(got));
  if (!client.reader) {
    const size_t wanted = sizeof(Nonce) - client.head.size();
    client.head.append(bytes.substr(0, wanted));
    bytes.remove_prefix(std::min(wanted, bytes.size()));
    if (client.head.size() < sizeof(Nonce)) return true;
    Nonce of_agent;
    std::memcpy(of_agent.data(), client.head.data(), sizeof of_agent);
    const SipKey key = session_key(token_, client.nonce, of_agent);
    client.reader = std::make_unique<FrameReader>(key, Direction::kToDriver, limits_.hello_bytes);
    client.writer = std::make_unique<FrameWriter>(key, Direction::kToAgent);
  }
  client.reader->feed(bytes);
  return take_frames(client, reports);
}

std::vector<AgentReport> AgentServer::poll(int milliseconds) {
  std::vector<AgentReport> reports;
  std::array<epoll_event, 256> events;
  listen_again();
  const int timeout = listening_ ? milliseconds : std::min(milliseconds, 100);
  const int ready = ::epoll_wait(epoll_.get(), events.data(), static_cast<int>(events.size()), timeout);
  bool connections = false;
  for (int i = 0; i < ready; ++i) {
    const int fd = events[i].data.fd;
    if (fd == listener_.get()) {
      connections = true;
      continue;
    }
    const auto at = clients_.find(fd);
    if (at == clients_.end()) continue;  // an earlier event has closed it
    bool goes_on = true;
    if (events[i].events & EPOLLOUT) goes_on = flush(at->second);
    if (goes_on && (events[i].events & (EPOLLIN | EPOLLHUP | EPOLLERR))) goes_on = read_from(at->second, reports);
    if (!goes_on) close(fd);
  }
  if (connections) take_connections();  // last, so that this round does not reuse the others' descriptors
  drop_late();
  return reports;
}

bool AgentServer::send(const std::string& node, const AgentOrder& order) {
  const auto at = agents_.find(node);
  if (at == agents_.end()) return false;
  Client& client = clients_.at(at->second);
  client.outgoing += client.writer->frame(to_bytes(order));
  if (flush(client)) return true;
  close(at->second);
  return false;
}

}  // namespace tri
