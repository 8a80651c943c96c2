#include "io/net/socket.h"

#include <netdb.h>
#include <poll.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <limits>
#include <memory>

namespace tri {
namespace {

Descriptor connect_to(const addrinfo& address, Deadline until) {
  Descriptor socket(
      ::socket(address.ai_family, address.ai_socktype | SOCK_NONBLOCK | SOCK_CLOEXEC, address.ai_protocol));
  if (socket.get() < 0) return socket;
  if (::connect(socket.get(), address.ai_addr, address.ai_addrlen) == 0) return socket;
  int problem = 0;
  socklen_t size = sizeof problem;
  const bool connected = errno == EINPROGRESS && is_ready(socket.get(), POLLOUT, until) &&
                         ::getsockopt(socket.get(), SOL_SOCKET, SO_ERROR, &problem, &size) == 0 && problem == 0;
  return connected ? std::move(socket) : Descriptor();
}

}  // namespace

std::optional<HostAndPort> parse_host_and_port(std::string_view text) {
  const size_t colon = text.rfind(':');
  if (colon == text.npos) return std::nullopt;
  std::string_view host = text.substr(0, colon), port = text.substr(colon + 1);
  const bool bracketed = host.size() > 2 && host.front() == '[' && host.back() == ']';
  if (bracketed) host = host.substr(1, host.size() - 2);
  if (host.empty() || (!bracketed && host.find_first_of(":[] /") != host.npos)) return std::nullopt;
  int number = -1;
  const auto [end, problem] = std::from_chars(port.data(), port.data() + port.size(), number);
  if (problem != std::errc() || end != port.data() + port.size() || number < 0 || number > 65535) return std::nullopt;
  return HostAndPort{std::string(host), number};
}

bool is_ready(int socket, short events, Deadline until) {
  pollfd descriptor{socket, events, 0};
  while (true) {
    const auto left =
        std::chrono::duration_cast<std::chrono::milliseconds>(until - std::chrono::steady_clock::now()).count();
    const int ready =
        ::poll(&descriptor, 1, static_cast<int>(std::clamp<int64_t>(left, 0, std::numeric_limits<int>::max())));
    if (ready >= 0 || errno != EINTR) return ready > 0;
  }
}

Descriptor connect_to(const HostAndPort& place, double seconds, Deadline until) {
  addrinfo hints{}, *found = nullptr;
  hints.ai_socktype = SOCK_STREAM;
  if (::getaddrinfo(place.host.c_str(), std::to_string(place.port).c_str(), &hints, &found) != 0) return Descriptor();
  const std::unique_ptr<addrinfo, void (*)(addrinfo*)> addresses(found, ::freeaddrinfo);
  for (const addrinfo* address = found; address != nullptr; address = address->ai_next)
    if (Descriptor socket = connect_to(*address, std::min(until, deadline_in(seconds))); socket.get() >= 0)
      return socket;
  return Descriptor();
}

bool send_all(int socket, std::string_view bytes, double seconds, Deadline until) {
  while (!bytes.empty()) {
    if (!is_ready(socket, POLLOUT, std::min(until, deadline_in(seconds)))) return false;
    const ssize_t sent = ::send(socket, bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent < 0 && errno != EAGAIN && errno != EINTR) return false;
    if (sent > 0) bytes.remove_prefix(static_cast<size_t>(sent));
  }
  return true;
}

bool receive_exactly(int socket, char* data, size_t bytes, Deadline until) {
  for (size_t done = 0; done < bytes;) {
    if (!is_ready(socket, POLLIN, until)) return false;
    const ssize_t got = ::recv(socket, data + done, bytes - done, MSG_DONTWAIT);
    if (got == 0 || (got < 0 && errno != EAGAIN && errno != EINTR)) return false;
    if (got > 0) done += static_cast<size_t>(got);
  }
  return true;
}

Result<Descriptor> listen_at(const sockaddr& address, socklen_t size, int backlog) {
  Descriptor socket(::socket(address.sa_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (socket.get() < 0) return system_error(errno, "socket");
  const int on = 1, off = 0;
  ::setsockopt(socket.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  if (address.sa_family == AF_INET6) ::setsockopt(socket.get(), IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof off);
  if (::bind(socket.get(), &address, size) != 0) return system_error(errno, "bind");
  if (::listen(socket.get(), backlog) != 0) return system_error(errno, "listen");
  return socket;
}

int port_of(int socket) {
  sockaddr_storage address{};
  socklen_t size = sizeof address;
  ::getsockname(socket, reinterpret_cast<sockaddr*>(&address), &size);
  return ntohs(address.ss_family == AF_INET6 ? reinterpret_cast<sockaddr_in6&>(address).sin6_port
                                             : reinterpret_cast<sockaddr_in&>(address).sin_port);
}

}  // namespace tri
