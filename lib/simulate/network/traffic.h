// What the ranks of a job send each other between machines: the connections of every axis, as rings and messages make
// them, and where the ranks stand.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "io/base/enum_names.h"
#include "lib/simulate/collectives.h"
#include "lib/simulate/workload.h"

namespace tri {

// Of the job's machines on the ports of the switches.
enum class Placement {
  kPacked,     // in the order of their ranks: neighbours in a ring are neighbours on a switch
  kScattered,  // by chance, as a scheduler gives machines that knows nothing of switches
};

template <>
struct EnumNames<Placement> {
  static constexpr std::array table{std::pair{Placement::kPacked, std::string_view("packed")},
                                    std::pair{Placement::kScattered, std::string_view("scattered")}};
};

// [machine of the job, in the order of ranks] its place on the switches.
std::vector<int> place_machines(int machines, Placement placement, uint64_t seed);

struct Connection {
  int group = 0;         // of its axis; of pp: the column
  int from = 0, to = 0;  // adapters, machine's place · ranks + index
};

// Of an axis, between machines. A ring of a group goes through each of its machines with as many adapters as the group
// has members there. Messages between stages make two of these: activations go forward, gradients backward.
struct AxisTraffic {
  TransferAxis axis{};
  std::string name;                        // "pp forward"
  int groups = 0, ranks = 1, on_node = 1;  // groups of so many ranks, of which so many on one machine
  std::vector<Connection> connections;     // none: it stays inside machines
};

// Of all axes with more than one rank, tp first. `places`: place_machines.
std::vector<AxisTraffic> traffic_of(const Workload& workload, const Cluster& cluster, const std::vector<int>& places);

int machines_of(const Workload& workload, const Cluster& cluster);

}  // namespace tri
