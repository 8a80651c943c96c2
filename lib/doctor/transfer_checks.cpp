// Checks of copies and messages between host and device, parts of a node, and neighbouring nodes.
#include <arpa/inet.h>
#include <ifaddrs.h>
#include <linux/mempolicy.h>
#include <net/if.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstring>

#include "io/base/file.h"
#include "io/base/text_file.h"
#include "lib/comm/host/bootstrap.h"
#include "lib/doctor/checks.h"
#include "lib/doctor/host_facts.h"
#include "lib/doctor/timing.h"

namespace tri {
namespace {

double gigabytes_a_second(int64_t bytes, double seconds) { return 1e-9 * static_cast<double>(bytes) / seconds; }

// During its lifetime, memory first touched by this thread comes from one NUMA node.
class NumaBinding {
 public:
  explicit NumaBinding(int node) {
    unsigned long mask[16] = {};
    if (node < 0 || node >= 1024) return;
    mask[node / 64] = 1UL << (node % 64);
    bound_ = ::syscall(SYS_set_mempolicy, MPOL_BIND, mask, 1024UL) == 0;
  }
  ~NumaBinding() {
    if (bound_) ::syscall(SYS_set_mempolicy, MPOL_DEFAULT, nullptr, 0UL);
  }
  NumaBinding(const NumaBinding&) = delete;
  NumaBinding& operator=(const NumaBinding&) = delete;
  bool bound() const { return bound_; }

 private:
  bool bound_ = false;
};

void measure_host(CheckContext& context, const std::string& memory, const std::string& distance, CheckResult& result) {
  const HostBuffer<char> host(context.device, static_cast<size_t>(context.copy_bytes));
  std::memset(host.data(), 1, host.size());
  const auto rate = [&](void* to, const void* from) {
    return gigabytes_a_second(context.copy_bytes, best_seconds_on(context.stream, context.device, 4, [&] {
                                context.stream.copy(to, from, context.copy_bytes);
                              }));
  };
  result.measurements.push_back({.part = memory + " → " + context.part,
                                 .group = "to device" + distance,
                                 .value = rate(context.source.data, host.data())});
  result.measurements.push_back({.part = context.part + " → " + memory,
                                 .group = "from device" + distance,
                                 .value = rate(host.data(), context.source.data)});
}

void wait_for_own_ranks(CheckContext& context) {
  if (context.nodes.own_ranks().size() > 1) gather_among_members(std::string(), context.nodes.own_ranks());
}

// Returns the distances between members to test: all of a small node, powers of two of a large one.
std::vector<int> distances(int members) {
  std::vector<int> list;
  for (int distance = 1; distance<members; distance = members> 16 ? 2 * distance : distance + 1)
    list.push_back(distance);
  return list;
}

}  // namespace

// Copies from the memory of each NUMA node. Only copies at the same distance from the device are compared.
CheckResult check_host_copies(CheckContext& context) {
  CheckResult result;
  const std::vector<int> numa = numa_nodes("/");
  const std::string own = context.device.bus_id().empty()
                              ? ""
                              : first_line_of("/sys/bus/pci/devices/" + context.device.bus_id() + "/numa_node");
  for (const int node : numa) {
    const NumaBinding binding(numa.size() > 1 ? node : -1);
    if (!binding.bound()) continue;
    measure_host(context, fmt::format("NUMA {}", node),
                 own.empty()                   ? ""
                 : own == std::to_string(node) ? ", near"
                                               : ", far",
                 result);
  }
  // There is one NUMA node, or the container forbids the choice.
  if (result.measurements.empty()) measure_host(context, "host", "", result);
  return result;
}

// Copies into each peer's memory, one pair at a time.
CheckResult check_peer_copies(CheckContext& context) {
  const std::vector<int>& ranks = context.nodes.own_ranks();
  const int members = static_cast<int>(ranks.size()), self = context.nodes.index;
  if (members < 2) return {.skipped = "the node has only one rank"};
  if (context.peers == nullptr) return {.skipped = context.no_peers};
  CheckResult result;
  for (const int distance : distances(members))
    for (int sender = 0; sender < members; ++sender) {
      wait_for_own_ranks(context);
      if (sender != self) continue;
      const int peer = (self + distance) % members;
      char* to = context.peers->memory().at(peer, static_cast<char*>(context.landing.data));
      const double seconds = best_seconds_on(context.stream, context.device, 3,
                                             [&] { context.stream.copy(to, context.source.data, context.copy_bytes); });
      const int world_peer = ranks[static_cast<size_t>(peer)];
      const std::string &from_end = context.end(context.job.world_rank()), &to_end = context.end(world_peer);
      result.measurements.push_back({.part = context.part + " → " + to_end.substr(to_end.find(": ") + 2),
                                     .end_a = from_end,
                                     .end_b = to_end,
                                     .value = gigabytes_a_second(context.copy_bytes, seconds)});
    }
  wait_for_own_ranks(context);
  return result;
}

// Each member sends a share of its bytes to each other member, all at once.
CheckResult check_all_to_all(CheckContext& context) {
  const int members = static_cast<int>(context.nodes.own_ranks().size()), self = context.nodes.index;
  if (members < 2) return {.skipped = "the node has only one rank"};
  if (context.peers == nullptr) return {.skipped = context.no_peers};
  const int64_t block = context.copy_bytes / members / 256 * 256;
  double best = std::numeric_limits<double>::infinity();
  for (int round = 0; round < 4; ++round) {
    wait_for_own_ranks(context);
    const double seconds = best_seconds_on(context.stream, context.device, 1, [&] {
      for (int shift = 1; shift < members; ++shift) {
        const int peer = (self + shift) % members;
        char* landing = context.peers->memory().at(peer, static_cast<char*>(context.landing.data));
        context.stream.copy(landing + self * block, static_cast<char*>(context.source.data) + peer * block, block);
      }
    });
    best = std::min(best, seconds);
  }
  wait_for_own_ranks(context);
  return {.measurements = {{.part = context.part, .value = gigabytes_a_second(block * (members - 1), best)}}};
}

}  // namespace tri
