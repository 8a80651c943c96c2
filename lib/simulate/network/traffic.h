// What the ranks of a job send each other between machines: the connections of every axis, as rings and messages create
// them, and the positions of the ranks.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "io/base/enum_names.h"
#include "lib/simulate/collectives.h"
#include "lib/simulate/workload.h"

namespace tri {

// How the job's machines are assigned to switch ports.
enum class Placement {
  kPacked,     // in rank order: neighbours in a ring are neighbours on a switch
  kScattered,  // at random, like a scheduler that does not know the switches
};

template <>
struct EnumNames<Placement> {
  static constexpr std::array table{std::pair{Placement::kPacked, std::string_view("packed")},
                                    std::pair{Placement::kScattered, std::string_view("scattered")}};
};

// Returns [machine of the job, in rank order] its position on the switches.
std::vector<int> place_machines(int machines, Placement placement, uint64_t seed);

struct Connection {
  int group = 0;         // group of the axis; for pp: the column
  int from = 0, to = 0;  // adapters, machine's position · ranks + index
};

// The traffic of an axis between machines. A group's ring passes through each of its machines, with one adapter per
// member there. Messages between stages form two of these: activations go forward, gradients backward.
struct AxisTraffic {
  TransferAxis axis{};
  std::string name;                        // "pp forward"
  int groups = 0, ranks = 1, on_node = 1;  // groups of `ranks` ranks, of which `on_node` share a machine
  std::vector<Connection> connections;     // none: the traffic stays inside machines
};

// Returns the traffic of all axes with more than one rank, tp first. `places`: from place_machines().
std::vector<AxisTraffic> traffic_of(const Workload& workload, const Cluster& cluster, const std::vector<int>& places);

int machines_of(const Workload& workload, const Cluster& cluster);

}  // namespace tri
