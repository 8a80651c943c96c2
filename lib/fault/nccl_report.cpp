#include "lib/fault/nccl_report.h"

#include <poll.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>

#include "io/net/socket.h"

namespace tri {
namespace {

HostAndPort service() {
  const char* given = std::getenv("NCCL_RAS_ADDR");
  const std::string text = given != nullptr && *given != '\0' ? given : "localhost:28028";
  if (const auto parsed = parse_host_and_port(text)) return *parsed;
  // NCCL also accepts an IPv6 address without brackets.
  if (const size_t colon = text.rfind(':'); colon != text.npos)
    if (const auto parsed = parse_host_and_port("[" + text.substr(0, colon) + "]" + text.substr(colon))) return *parsed;
  return {text, 28028};
}

// Appends received text until the end of the connection or, if requested, of a line. Returns false on a timeout.
bool receive(int socket, std::string& text, bool line, Deadline until) {
  char buffer[4096];
  while (is_ready(socket, POLLIN, until)) {
    const ssize_t got = ::recv(socket, buffer, sizeof buffer, 0);
    if (got < 0 && (errno == EAGAIN || errno == EINTR)) continue;
    if (got <= 0) return got == 0 && !line;
    text.append(buffer, static_cast<size_t>(got));
    if (line && text.back() == '\n') return true;
  }
  return false;
}

// The service waits for ranks that do not answer; limit that to half of the remaining time.
std::string converse(int socket, double seconds, Deadline until) {
  const int timeout = std::max(static_cast<int>(seconds / 2), 1);
  std::string agreed, report;
  if (!send_all(socket, "timeout " + std::to_string(timeout) + "\n", seconds, until)) return "";
  if (!receive(socket, agreed, true, until)) return "";
  if (!send_all(socket, "verbose status\n", seconds, until)) return "";
  receive(socket, report, false, until);
  return report;
}

}  // namespace

std::string nccl_report(double seconds) {
  const Deadline until = deadline_in(seconds);
  const Descriptor socket = connect_to(service(), seconds, until);
  return socket.get() >= 0 ? converse(socket.get(), seconds, until) : "";
}

}  // namespace tri
