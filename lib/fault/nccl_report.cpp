#include "lib/fault/nccl_report.h"

#include <netdb.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <memory>
#include <string_view>
#include <utility>

#include "io/base/file.h"

namespace tri {
namespace {

using Time = std::chrono::steady_clock::time_point;

// Host and port; an IPv6 host stands in brackets.
std::pair<std::string, std::string> address() {
  const char* given = std::getenv("NCCL_RAS_ADDR");
  const std::string text = given != nullptr && *given != '\0' ? given : "localhost:28028";
  const size_t colon = text.rfind(':');
  if (colon == text.npos) return {text, "28028"};
  std::string host = text.substr(0, colon);
  if (host.size() > 1 && host.front() == '[' && host.back() == ']') host = host.substr(1, host.size() - 2);
  return {host, text.substr(colon + 1)};
}

bool ready(int socket, short events, Time until) {
  const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(until - std::chrono::steady_clock::now());
  pollfd waits{socket, events, 0};
  return ::poll(&waits, 1, static_cast<int>(std::max<int64_t>(left.count(), 0))) > 0;
}

Descriptor connect_to(const addrinfo& place, Time until) {
  Descriptor socket(::socket(place.ai_family, place.ai_socktype | SOCK_NONBLOCK | SOCK_CLOEXEC, place.ai_protocol));
  if (socket.get() < 0) return socket;
  if (::connect(socket.get(), place.ai_addr, place.ai_addrlen) == 0) return socket;
  int problem = 0;
  socklen_t size = sizeof problem;
  const bool connected = errno == EINPROGRESS && ready(socket.get(), POLLOUT, until) &&
                         ::getsockopt(socket.get(), SOL_SOCKET, SO_ERROR, &problem, &size) == 0 && problem == 0;
  return connected ? std::move(socket) : Descriptor();
}

bool send_all(int socket, std::string_view text, Time until) {
  while (!text.empty()) {
    if (!ready(socket, POLLOUT, until)) return false;
    const ssize_t sent = ::send(socket, text.data(), text.size(), MSG_NOSIGNAL);
    if (sent < 0 && errno != EAGAIN && errno != EINTR) return false;
    if (sent > 0) text.remove_prefix(static_cast<size_t>(sent));
  }
  return true;
}

// Appends what comes, to the end of the connection or, if asked for, of a line. False: it did not come.
bool receive(int socket, std::string& text, bool line, Time until) {
  char buffer[4096];
  while (ready(socket, POLLIN, until)) {
    const ssize_t got = ::recv(socket, buffer, sizeof buffer, 0);
    if (got < 0 && (errno == EAGAIN || errno == EINTR)) continue;
    if (got <= 0) return got == 0 && !line;
    text.append(buffer, static_cast<size_t>(got));
    if (line && text.back() == '\n') return true;
  }
  return false;
}

// The service waits for ranks that do not answer: no longer than half of the time that is left.
std::string converse(int socket, double seconds, Time until) {
  const int patience = std::max(static_cast<int>(seconds / 2), 1);
  std::string agreed, report;
  if (!send_all(socket, "timeout " + std::to_string(patience) + "\n", until)) return "";
  if (!receive(socket, agreed, true, until)) return "";
  if (!send_all(socket, "verbose status\n", until)) return "";
  receive(socket, report, false, until);
  return report;
}

}  // namespace

std::string nccl_report(double seconds) {
  const auto until = std::chrono::steady_clock::now() + std::chrono::duration_cast<std::chrono::steady_clock::duration>(
                                                            std::chrono::duration<double>(seconds));
  const auto [host, port] = address();
  addrinfo hints{}, *found = nullptr;
  hints.ai_socktype = SOCK_STREAM;
  if (::getaddrinfo(host.c_str(), port.c_str(), &hints, &found) != 0) return "";
  const std::unique_ptr<addrinfo, void (*)(addrinfo*)> places(found, ::freeaddrinfo);
  for (const addrinfo* place = found; place != nullptr; place = place->ai_next)
    if (const Descriptor socket = connect_to(*place, until); socket.get() >= 0)
      return converse(socket.get(), seconds, until);
  return "";
}

}  // namespace tri
