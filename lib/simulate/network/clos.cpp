#include "lib/simulate/network/clos.h"

#include "io/base/error.h"

namespace tri {
namespace {

int divide_up(int a, int b) { return (a + b - 1) / b; }

// The number of switches of the lowest layer for this number of machines.
int64_t switches_for(const Cluster& c, int machines) {
  const int64_t ports = c.fabric.down_ports;
  if (c.fabric.rails) return (machines + ports - 1) / ports * c.node.ranks;
  return divide_up(machines, c.fabric.down_ports / c.node.ranks);
}

}  // namespace

std::string Clos::problem_of(const Cluster& c, int machines) {
  const ClusterFabric& f = c.fabric;
  if (!f.rails && f.down_ports < c.node.ranks)
    return fmt::format(
        "fabric.down_ports {} is less than node.ranks {}: the adapters of a machine do not fit on one leaf switch; "
        "raise "
        "fabric.down_ports, or set fabric.rails to true",
        f.down_ports, c.node.ranks);
  if (f.rails && f.pod_switches % c.node.ranks != 0)
    return fmt::format(
        "fabric.pod_switches {} is not a multiple of node.ranks {}, the number of leaf switches in a block with rails; "
        "set it to {}",
        f.pod_switches, c.node.ranks, divide_up(f.pod_switches, c.node.ranks) * c.node.ranks);
  if (const int64_t needed = switches_for(c, machines); f.layers == 2 && needed > f.pod_switches)
    return fmt::format(
        "fabric.layers 2 connects {} leaf switches (fabric.pod_switches), but {} machines need {}; set fabric.layers "
        "to 3",
        f.pod_switches, machines, needed);
  return "";
}

Clos::Clos(const Cluster& cluster, int machines) : cluster_(cluster), adapters_(machines * cluster.node.ranks) {
  TRI_REQUIRE(problem_of(cluster, machines).empty(), "{}", problem_of(cluster, machines));
  const ClusterFabric& f = cluster.fabric;
  switches_ = static_cast<int>(switches_for(cluster, machines));
  pods_ = divide_up(switches_, f.pod_switches);
  const double line = cluster.network.gb_per_s * 1e9, up = f.up_gb_per_s * 1e9;
  capacities_.assign(static_cast<size_t>(2 * adapters_), line);
  const int links = f.layers == 3 && pods_ > 1 ? spine_down(pods_, 0, 0) : switch_down(switches_, 0);
  capacities_.resize(static_cast<size_t>(links), up);
}

int Clos::switch_of(int adapter) const {
  const ClusterFabric& f = cluster_.fabric;
  const int machine = adapter / cluster_.node.ranks;
  if (f.rails) return machine / f.down_ports * cluster_.node.ranks + adapter % cluster_.node.ranks;
  return machine / (f.down_ports / cluster_.node.ranks);
}

Path Clos::route(uint64_t seed, const FiveTuple& flow) const {
  const ClusterFabric& f = cluster_.fabric;
  const int from = static_cast<int>(flow.from), to = static_cast<int>(flow.to);
  const int first = switch_of(from), last = switch_of(to);
  const int first_pod = pod_of(from), last_pod = pod_of(to);
  Path path;
  path.push(adapter_up(from));
  if (first != last) {
    const int up = ecmp_link(seed, static_cast<uint64_t>(first), flow, f.up_ports);
    path.push(switch_up(first, up));
    if (first_pod != last_pod) {
      const auto spine = static_cast<uint64_t>(switches_ + first_pod * f.up_ports + up);
      const int core = ecmp_link(seed, spine, flow, f.core_ports);
      path.push(spine_up(first_pod, up, core));
      path.push(spine_down(last_pod, up, core));
    }
    path.push(switch_down(last, up));
  }
  path.push(adapter_down(to));
  return path;
}

std::string Clos::link_name(int link) const {
  const int ups = cluster_.fabric.up_ports, cores = cluster_.fabric.core_ports;
  if (link < adapter_down(0)) return fmt::format("adapter {} out", link);
  if (link < switch_up(0, 0)) return fmt::format("adapter {} in", link - adapter_down(0));
  const auto of_switch = [&](int first, const char* way) {
    return fmt::format("switch {} {} {}", (link - first) / ups, way, (link - first) % ups);
  };
  if (link < switch_down(0, 0)) return of_switch(switch_up(0, 0), "up");
  if (link < spine_up(0, 0, 0)) return of_switch(switch_down(0, 0), "down");
  const bool rises = link < spine_down(0, 0, 0);
  const int number = link - (rises ? spine_up(0, 0, 0) : spine_down(0, 0, 0));
  return fmt::format("pod {} spine {} {} {}", number / cores / ups, number / cores % ups, rises ? "up" : "down",
                     number % cores);
}

}  // namespace tri
