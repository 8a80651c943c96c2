// TCP sockets that never block: every wait has a deadline.
#pragma once

#include <netinet/in.h>
#include <sys/socket.h>

#include <chrono>
#include <optional>
#include <string>
#include <string_view>

#include "io/base/file.h"

namespace tri {

struct HostAndPort {
  std::string host;  // a name or an address
  int port = 0;      // 0: any that is free
  bool operator==(const HostAndPort&) const = default;
};
// "localhost:9400", "[::1]:9400"; nothing else.
std::optional<HostAndPort> parse_host_and_port(std::string_view text);

using Deadline = std::chrono::steady_clock::time_point;
inline Deadline deadline_in(double seconds) {
  return std::chrono::steady_clock::now() +
         std::chrono::duration_cast<std::chrono::steady_clock::duration>(std::chrono::duration<double>(seconds));
}

// Whether `socket` becomes ready for `events` (POLLIN, POLLOUT) by `until`.
bool is_ready(int socket, short events, Deadline until);

// A connection to `place`, tried at each of its addresses for `seconds` at most, and by `until`; -1: there is none.
Descriptor connect_to(const HostAndPort& place, double seconds, Deadline until = Deadline::max());

// Sends all of `bytes`. False: the connection is over, nothing could be sent for `seconds`, or `until` has passed.
bool send_all(int socket, std::string_view bytes, double seconds, Deadline until = Deadline::max());
// Receives exactly so many bytes. False: the connection is over, or `until` has passed.
bool receive_exactly(int socket, char* data, size_t bytes, Deadline until);

// A socket that listens at `address`, which is an IPv4 or IPv6 address of `size` bytes. One at "::" takes connections
// over IPv4 too.
Result<Descriptor> listen_at(const sockaddr& address, socklen_t size, int backlog);
// The port that a socket is bound to.
int port_of(int socket);

}  // namespace tri
