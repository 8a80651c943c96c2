// Switches between machines: a folded Clos network of two or three layers, as directed links, and the routes of flows.
//
//   core       [u, s]     link s of spine switch u of every pod connects here         (3 layers)
//   spine      [pod, u]   link u of every lowest switch of the pod
//   lowest     [t]        with rails: adapter i of down_ports machines; else all adapters of some machines
//   adapter    [machine · ranks + i]
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "lib/simulate/cluster.h"
#include "lib/simulate/network/ecmp.h"

namespace tri {

// The links of a flow, from the sending adapter's to the receiving adapter's.
struct Path {
  std::array<int32_t, 6> links{};
  int size = 0;

  void push(int link) { links[static_cast<size_t>(size++)] = link; }
  const int32_t* begin() const { return links.data(); }
  const int32_t* end() const { return links.data() + size; }
};

class Clos {
 public:
  // Returns "" if the cluster's switches connect this many machines; else the problem, with field, value and remedy.
  static std::string problem_of(const Cluster& cluster, int machines);

  // Requires that problem_of() returns "". `cluster` must outlive the object.
  Clos(const Cluster& cluster, int machines);

  const std::vector<double>& capacities() const { return capacities_; }  // [link] bytes per second
  int switch_of(int adapter) const;                                      // of the lowest layer
  int pod_of(int adapter) const { return switch_of(adapter) / cluster_.fabric.pod_switches; }
  // Returns the route between adapters of two machines. Depends only on the arguments.
  Path route(uint64_t seed, const FiveTuple& flow) const;
  std::string link_name(int link) const;  // for example "switch 3 up 17"

 private:
  // The numbers of links by kind, in ascending order.
  int adapter_up(int adapter) const { return adapter; }
  int adapter_down(int adapter) const { return adapters_ + adapter; }
  int switch_up(int lowest, int up) const { return 2 * adapters_ + lowest * cluster_.fabric.up_ports + up; }
  int switch_down(int lowest, int up) const { return switch_up(switches_, 0) + lowest * cluster_.fabric.up_ports + up; }
  int spine_up(int pod, int up, int core) const {
    return switch_down(switches_, 0) + (pod * cluster_.fabric.up_ports + up) * cluster_.fabric.core_ports + core;
  }
  int spine_down(int pod, int up, int core) const {
    return spine_up(pods_, 0, 0) + spine_up(pod, up, core) - spine_up(0, 0, 0);
  }

  const Cluster& cluster_;
  int adapters_ = 0, switches_ = 0, pods_ = 0;
  std::vector<double> capacities_;
};

}  // namespace tri
