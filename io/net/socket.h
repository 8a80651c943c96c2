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
  int port = 0;      // 0: any free port
  bool operator==(const HostAndPort&) const = default;
};
// Parses "localhost:9400" or "[::1]:9400"; anything else gives nullopt.
std::optional<HostAndPort> parse_host_and_port(std::string_view text);

using Deadline = std::chrono::steady_clock::time_point;
inline Deadline deadline_in(double seconds) {
  return std::chrono::steady_clock::now() +
         std::chrono::duration_cast<std::chrono::steady_clock::duration>(std::chrono::duration<double>(seconds));
}

// Returns whether `socket` becomes ready for `events` (POLLIN, POLLOUT) by `until`.
bool is_ready(int socket, short events, Deadline until);

// Connects to `place`, trying each of its addresses for at most `seconds`, and until `until`. -1: no connection.
Descriptor connect_to(const HostAndPort& place, double seconds, Deadline until = Deadline::max());

// Sends all of `bytes`. Returns false if the connection is closed, nothing could be sent for `seconds`, or `until` has
// passed.
bool send_all(int socket, std::string_view bytes, double seconds, Deadline until = Deadline::max());
// Receives exactly `bytes` bytes. Returns false if the connection is closed, or `until` has passed.
bool receive_exactly(int socket, char* data, size_t bytes, Deadline until);

// Returns a socket that listens at `address`, an IPv4 or IPv6 address of `size` bytes. At "::" it accepts IPv4
// connections too. Fails with the errno.
Result<Descriptor> listen_at(const sockaddr& address, socklen_t size, int backlog);
// Returns the port that a socket is bound to.
int port_of(int socket);

}  // namespace tri
