#include "io/net/text_server.h"

#include <fcntl.h>
#include <netdb.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <thread>
#include <vector>

#include "io/base/file.h"

namespace tri {
namespace {

using SteadyClock = std::chrono::steady_clock;

constexpr size_t kLongestRequest = 8192;

std::string answer(std::string_view status, std::string_view type, std::string_view body, bool with_body) {
  return fmt::format("HTTP/1.1 {}\r\nContent-Type: {}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{}", status,
                     type, body.size(), with_body ? body : "");
}

// One client connection: receives a request and sends the answer.
class Connection {
 public:
  explicit Connection(int socket) : socket_(socket) {}

  int socket() const { return socket_.get(); }
  short awaits() const { return answer_.empty() ? POLLIN : POLLOUT; }
  bool is_late(SteadyClock::time_point now) const { return now > end_; }
  SteadyClock::time_point end() const { return end_; }

  // Continues as far as possible without waiting; returns false when the connection is finished.
  bool go_on(const std::string& type, const TextServer::Text& text) {
    if (answer_.empty() && !read_request()) return false;
    if (answer_.empty() && request_.find("\r\n\r\n") == std::string::npos) return true;
    if (answer_.empty()) answer_ = answer_to(type, text);
    while (sent_ < answer_.size()) {
      const ssize_t bytes = ::send(socket(), answer_.data() + sent_, answer_.size() - sent_, MSG_NOSIGNAL);
      if (bytes < 0) return errno == EAGAIN || errno == EINTR;
      sent_ += static_cast<size_t>(bytes);
    }
    return false;
  }

 private:
  bool read_request() {
    char buffer[2048];
    const ssize_t bytes = ::recv(socket(), buffer, sizeof buffer, 0);
    if (bytes < 0) return errno == EAGAIN || errno == EINTR;
    request_.append(buffer, static_cast<size_t>(bytes));
    return bytes > 0 && request_.size() <= kLongestRequest;
  }

  std::string answer_to(const std::string& type, const TextServer::Text& text) const {
    const std::string_view line = std::string_view(request_).substr(0, request_.find("\r\n"));
    const std::string_view method = line.substr(0, line.find(' '));
    std::string_view path = line.substr(std::min(line.size(), method.size() + 1));
    path = path.substr(0, path.find_first_of(" ?"));
    const bool with_body = method != "HEAD";
    if (method != "GET" && method != "HEAD")
      return answer("405 Method Not Allowed", "text/plain", "only GET and HEAD are supported\n", true);
    if (path != "/metrics")
      return answer("404 Not Found", "text/plain", "not found; the metrics are at /metrics\n", with_body);
    return answer("200 OK", type, text(), with_body);
  }

  Descriptor socket_;
  std::string request_, answer_;
  size_t sent_ = 0;
  SteadyClock::time_point end_ = SteadyClock::now() + std::chrono::duration_cast<SteadyClock::duration>(
                                                          std::chrono::duration<double>(TextServer::kTimeout));
};

}  // namespace

class TextServer::Loop {
 public:
  Loop(Descriptor listener, std::string type, Text text)
      : listener_(std::move(listener)),
        wake_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)),
        type_(std::move(type)),
        text_(std::move(text)),
        thread_([this] { run(); }) {}
  ~Loop() {
    const uint64_t one = 1;
    (void)!::write(wake_.get(), &one, sizeof one);
    thread_.join();
  }

 private:
  void run() {
    std::vector<pollfd> waits;
    for (;;) {
      waits = {{wake_.get(), POLLIN, 0}, {listener_.get(), POLLIN, 0}};
      for (const Connection& connection : connections_) waits.push_back({connection.socket(), connection.awaits(), 0});
      ::poll(waits.data(), waits.size(), pause());
      if (waits[0].revents != 0) return;
      for (size_t i = connections_.size(); i-- > 0;) {
        const bool goes_on = waits[i + 2].revents == 0 || connections_[i].go_on(type_, text_);
        if (!goes_on || connections_[i].is_late(SteadyClock::now()))
          connections_.erase(connections_.begin() + static_cast<std::ptrdiff_t>(i));
      }
      if (waits[1].revents != 0) take_visitors();
    }
  }

  // Returns the milliseconds until the oldest connection times out; -1: no connections.
  int pause() const {
    if (connections_.empty()) return -1;
    const auto left = connections_.front().end() - SteadyClock::now();  // of the oldest connection
    return static_cast<int>(std::max<int64_t>(0, std::chrono::duration_cast<std::chrono::milliseconds>(left).count())) +
           1;
  }

  void take_visitors() {
    for (;;) {
      const int visitor = ::accept4(listener_.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC);
      if (visitor < 0) {
        // If no descriptor is available, poll() would return at once, forever.
        if (errno == EMFILE || errno == ENFILE || errno == ENOMEM || errno == ENOBUFS)
          std::this_thread::sleep_for(std::chrono::milliseconds(100));
        return;
      }
      connections_.emplace_back(visitor);
      if (connections_.size() > kMostConnections) connections_.erase(connections_.begin());
    }
  }

  Descriptor listener_, wake_;
  const std::string type_;
  const Text text_;
  std::vector<Connection> connections_;  // oldest first
  std::thread thread_;
};

TextServer::~TextServer() = default;

Result<std::unique_ptr<TextServer>> TextServer::start(const HostAndPort& where, std::string content_type, Text text) {
  addrinfo wanted{}, *found = nullptr;
  wanted.ai_socktype = SOCK_STREAM;
  wanted.ai_flags = AI_PASSIVE | AI_NUMERICSERV;
  const std::string port = std::to_string(where.port);
  if (const int problem = ::getaddrinfo(where.host.c_str(), port.c_str(), &wanted, &found); problem != 0)
    return file_error("{}: {}", where.host, ::gai_strerror(problem));
  const std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)> addresses(found, ::freeaddrinfo);
  Result<Descriptor> listener = file_error("{}: the host has no address", where.host);
  for (const addrinfo* address = found; address != nullptr && !listener; address = address->ai_next)
    listener = listen_at(*address->ai_addr, address->ai_addrlen, kMostConnections);
  if (!listener) return Error{fmt::format("{}:{}: {}", where.host, where.port, listener.error().message)};
  std::unique_ptr<TextServer> server(new TextServer);
  server->port_ = port_of(listener.value().get());
  server->loop_ = std::make_unique<Loop>(std::move(listener).value(), std::move(content_type), std::move(text));
  return server;
}

}  // namespace tri
