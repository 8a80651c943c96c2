// Checks over groups of lib/comm (MPI, NCCL) to neighbours, and over TCP to the node itself.
#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <string_view>
#include <thread>
#include <vector>

#include "io/base/clock.h"
#include "io/base/file.h"
#include "lib/doctor/checks.h"
#include "lib/doctor/timing.h"

namespace tri {
namespace {

// The two ranks that exchange data in a phase; -1: none.
struct Edge {
  int first = -1, second = -1;  // world ranks
};

// A ring of units (nodes, or the ranks of one node): each exchanges data with the next, in enough phases that no unit
// has two neighbours at a time. Member i of a unit is paired with member i of the next.
std::vector<Edge> edges_of(const std::vector<std::vector<int>>& units, int world_rank) {
  const auto count = units.size();
  std::vector<Edge> phases(3);
  for (size_t k = 0; k + (count > 2 ? 0 : 1) < count; ++k) {
    const auto &first = units[k], &second = units[(k + 1) % count];
    const size_t phase = k + 1 == count && count % 2 == 1 ? 2 : k % 2;
    for (size_t i = 0; i < std::min(first.size(), second.size()); ++i)
      if (first[i] == world_rank || second[i] == world_rank) phases[phase] = {first[i], second[i]};
  }
  return phases;
}

template <class Transfer>
CheckResult over_edges(CheckContext& context, const std::vector<std::vector<int>>& units, double bytes,
                       const Transfer& transfer) {
  CheckResult result;
  for (const Edge& edge : edges_of(units, context.job.world_rank())) {
    context.job.barrier();
    const int tag = context.tag++;
    if (edge.first < 0) continue;
    const auto group = context.job.make_group("doctor", {edge.first, edge.second}, tag, context.device);
    const double seconds = best_seconds_on(context.stream, context.device, 4, [&] { transfer(*group); });
    if (context.job.world_rank() != edge.first) continue;
    const std::string &own = context.end(edge.first), &other = context.end(edge.second);
    const std::string own_host = own.substr(0, own.find(": ")), other_host = other.substr(0, other.find(": "));
    result.measurements.push_back(
        {.part = context.part + " ↔ " + (own_host == other_host ? other.substr(other.find(": ") + 2) : other),
         .end_a = own,
         .end_b = other,
         .value = 1e-9 * bytes / seconds});
  }
  return result;
}

// Returns the node's first non-loopback address, or the loopback address if there is none.
in_addr own_address() {
  in_addr address{};
  address.s_addr = htonl(INADDR_LOOPBACK);
  ifaddrs* list = nullptr;
  if (::getifaddrs(&list) != 0) return address;
  for (const ifaddrs* at = list; at != nullptr; at = at->ifa_next) {
    if (at->ifa_addr == nullptr || at->ifa_addr->sa_family != AF_INET || (at->ifa_flags & IFF_LOOPBACK) != 0 ||
        (at->ifa_flags & IFF_UP) == 0)
      continue;
    address = reinterpret_cast<const sockaddr_in*>(at->ifa_addr)->sin_addr;
    break;
  }
  ::freeifaddrs(list);
  return address;
}

// Sends `bytes` over a connection to this process. Waits end after ten seconds.
Result<void> send_to_self(in_addr address, int64_t bytes, double& seconds) {
  sockaddr_in place{.sin_family = AF_INET, .sin_addr = address};
  auto* const generic = reinterpret_cast<sockaddr*>(&place);
  socklen_t size = sizeof place;
  const Descriptor listener(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  Descriptor sender(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (listener.get() < 0 || sender.get() < 0) return system_error(errno, "creating a socket");
  const timeval timeout{.tv_sec = 10};
  for (const int fd : {listener.get(), sender.get()})
    for (const int option : {SO_RCVTIMEO, SO_SNDTIMEO}) ::setsockopt(fd, SOL_SOCKET, option, &timeout, sizeof timeout);
  if (::bind(listener.get(), generic, size) != 0 || ::listen(listener.get(), 1) != 0 ||
      ::getsockname(listener.get(), generic, &size) != 0)
    return system_error(errno, "listening on the node's own address");
  if (::connect(sender.get(), generic, size) != 0) return system_error(errno, "connecting to the node's own address");
  const Descriptor receiver(::accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC));
  if (receiver.get() < 0) return system_error(errno, "accepting a connection from the node itself");
  ::setsockopt(receiver.get(), SOL_SOCKET, SO_RCVTIMEO, &timeout, sizeof timeout);
  int send_error = 0;
  int64_t received = 0;
  const auto begin = std::chrono::steady_clock::now();
  std::thread sending([&] {
    const std::vector<char> data(1 << 20, 'd');
    for (int64_t left = bytes; left > 0;) {
      const ssize_t sent =
          ::send(sender.get(), data.data(),
                 static_cast<size_t>(std::min<int64_t>(left, static_cast<int64_t>(data.size()))), MSG_NOSIGNAL);
      if (sent < 0 && errno == EINTR) continue;
      if (sent <= 0) {
        send_error = errno;
        break;
      }
      left -= sent;
    }
    ::shutdown(sender.get(), SHUT_WR);
  });
  std::vector<char> buffer(1 << 20);
  while (true) {
    const ssize_t got = ::recv(receiver.get(), buffer.data(), buffer.size(), 0);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) break;
    received += got;
  }
  seconds = seconds_since(begin);
  sending.join();
  if (send_error != 0) return system_error(send_error, "sending to the node's own address");
  if (received != bytes)
    return file_error("only {} of {} bytes were received from the node's own address", received, bytes);
  return {};
}

// Sends device memory there and back.
void exchange(CheckContext& context, CommGroup& group) {
  if (group.rank() == 0) {
    group.send(context.source, 1, context.stream);
    group.recv(context.landing, 1, context.stream);
  } else {
    group.recv(context.landing, 0, context.stream);
    group.send(context.source, 0, context.stream);
  }
}

bool has_value(const char* variable, std::string_view expected) {
  const char* value = std::getenv(variable);
  return value != nullptr && value == expected;
}

// Returns the memory node of the page at `address`, or -1 if the kernel does not report it.
int memory_node_of(const void* address) {
  constexpr unsigned long kNode = 1 << 0, kOfAddress = 1 << 1;  // from linux/mempolicy.h
  int node = -1;
  return ::syscall(SYS_get_mempolicy, &node, nullptr, 0, address, kNode | kOfAddress) == 0 ? node : -1;
}

}  // namespace

// Measures the kernel's network stack and memory; the card itself takes part only with RDMA.
CheckResult check_loopback(CheckContext& context) {
  if (!context.speaks()) return {};
  constexpr int64_t kBytes = 64 << 20;
  const in_addr address = own_address();
  const std::string part = fmt::format("TCP to {}", ::inet_ntoa(address));
  double best = std::numeric_limits<double>::infinity();
  for (int round = 0; round < 3; ++round) {
    double seconds = 0;
    if (auto sent = send_to_self(address, kBytes, seconds); !sent)
      return {.measurements = {{.part = part, .problem = sent.error().message}}};
    best = std::min(best, seconds);
  }
  return {.measurements = {{.part = part, .value = 1e-9 * kBytes / best}}};
}

// Exchanges device memory between neighbouring nodes: each rank with the rank of the same index on the next node, all
// at once, as for gradients.
CheckResult check_node_links(CheckContext& context) {
  if (context.nodes.ranks.size() < 2) return {.skipped = "the job has only one node"};
  return over_edges(context, context.nodes.ranks, 2.0 * static_cast<double>(context.copy_bytes),
                    [&](CommGroup& group) { exchange(context, group); });
}

// Exchanges data between neighbouring ranks of one node through its cards: from GPU or host memory to the card and
// back, by RDMA if the node supports it. NCCL and MPI use the cards only if they have no other way, which they decide
// once per process. Over TCP the data stays in the kernel. If a launcher binds ranks to memory nodes, each node is
// measured.
CheckResult check_nic_loopback(CheckContext& context) {
  for (const auto& [variable, value] : kNicLoopbackVariables)
    if (!has_value(variable, value))
      return {.skipped = "this check runs alone: trireme doctor --full --only nic_loopback"};
  std::vector<std::vector<int>> units;
  for (const int rank : context.nodes.own_ranks()) units.push_back({rank});
  if (context.job.all_of(units.size() < 2)) return {.skipped = "each node has only one rank"};
  CheckResult result = over_edges(context, units, 2.0 * static_cast<double>(context.copy_bytes),
                                  [&](CommGroup& group) { exchange(context, group); });
  if (context.device.kind() == DeviceKind::kCuda) return result;
  if (const int node = memory_node_of(context.source.data); node >= 0)
    for (Measurement& measurement : result.measurements) measurement.part += fmt::format(", memory node {}", node);
  return result;
}

CheckResult check_neighbour_all_reduce(CheckContext& context) {
  if (context.job.world_size() < 2) return {.skipped = "the job has only one rank"};
  std::vector<std::vector<int>> units = context.nodes.ranks;
  if (units.size() == 1) {  // the ranks of the node are the neighbours
    units.clear();
    for (const int rank : context.nodes.own_ranks()) units.push_back({rank});
  }
  // With two ranks the bus bandwidth is the buffer's bytes over the time (lib/bench/comm.h).
  return over_edges(context, units, static_cast<double>(context.copy_bytes),
                    [&](CommGroup& group) { group.all_reduce(context.landing, ReduceOp::kMax, context.stream); });
}

}  // namespace tri
