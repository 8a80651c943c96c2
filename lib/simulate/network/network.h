// `trireme simulate --network`: what share of its adapters' line rate each axis gets, which link takes the rest, and
// what that does to the step. Seeded: the same question has the same answer.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "lib/simulate/network/algorithms.h"
#include "lib/simulate/network/fair_share.h"
#include "lib/simulate/network/flaps.h"
#include "lib/simulate/network/traffic.h"
#include "lib/simulate/step_model.h"

namespace tri {

struct NetworkOptions {
  uint64_t seed = 1;
  Placement placement = Placement::kPacked;
};

// Of the adapters' line rate, that a connection gets. A group has its slowest connection's share, since rings and
// pipelines wait for it.
struct AxisShare {
  double slowest = 1;  // of all groups
  double mean = 1;     // over groups
};

// Under one rule of sharing: with this axis' transfers only; with all axes' at the same moment; and in the step, where
// others are under way for a part of the time.
struct AxisShares {
  AxisShare alone, together;
  double in_step = 1;  // of the slowest group
};

// The fullest link on the way of an axis' slowest connection.
struct BusyLink {
  std::string name;  // "": none, the connections have all that their adapters give
  double gb_per_s = 0;
  std::vector<std::pair<std::string, int>> flows;  // on it, by axis
  double wanted_gb_per_s = 0;                      // by its flows, as far as their adapters go
};

struct AxisNetwork {
  TransferAxis axis{};
  std::string name;  // "pp forward"
  int groups = 0, ranks = 1, on_node = 1;
  int connections = 0;                     // between machines; 0: the axis stays inside them
  double other_switch = 0, other_pod = 0;  // shares of the connections that leave their switch, and their pod
  double busy = 0;                         // share of the step in which its transfers are under way
  AxisShares fair, head_of_line;           // max-min fairness; priority flow control alone
  BusyLink why_alone, why_together;        // max-min
};

struct NetworkAnalysis {
  NetworkOptions options;
  int machines = 0, switches_used = 0, pods_used = 0, links_used = 0;
  std::vector<AxisNetwork> axes;
  // Steps with collectives by their quickest algorithm: with the adapters' line rate for all, with fair shares, and
  // with the bound of priority flow control.
  double uncongested_s = 0, fair_s = 0, head_of_line_s = 0;
  FlapOdds flaps;  // of the adapters' links of the job
};

// Error (kUsage): the cluster's switches do not hold the job's machines. `workload` without a problem.
Result<NetworkAnalysis> analyse_network(const Workload& workload, const Cluster& cluster,
                                        const NetworkOptions& options);

// With the same job placed otherwise, if there is one, as a line of comparison.
std::string to_text(const NetworkAnalysis& network, const NetworkAnalysis* other, const Workload& workload,
                    const Cluster& cluster);
std::string to_json(const NetworkAnalysis& network, const Cluster& cluster);  // one object, no newline

// A note for the user before an analysis of so many ranks begins; "" if it takes only seconds.
std::string duration_note(int ranks);

}  // namespace tri
