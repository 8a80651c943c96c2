// `trireme simulate --network`: the share of its adapters' line rate that each axis gets, the link that limits it, and
// the effect on the step. Seeded: equal inputs give equal results.
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

// The share of the adapters' line rate that connections get. A group has its slowest connection's share, since rings
// and pipelines wait for it.
struct AxisShare {
  double slowest = 1;  // minimum over all groups
  double mean = 1;     // over groups
};

// The shares under one sharing rule: with this axis' transfers only, with all axes' at once, and in the step, where
// other axes send for a part of the time.
struct AxisShares {
  AxisShare alone, together;
  double in_step = 1;  // of the slowest group
};

// The fullest link on the route of an axis' slowest connection.
struct BusyLink {
  std::string name;  // "": none, the adapters are the limit
  double gb_per_s = 0;
  std::vector<std::pair<std::string, int>> flows;  // on the link, by axis
  double wanted_gb_per_s = 0;                      // demand of its flows, limited by their adapters
};

struct AxisNetwork {
  TransferAxis axis{};
  std::string name;  // "pp forward"
  int groups = 0, ranks = 1, on_node = 1;
  int connections = 0;                     // between machines; 0: the axis stays inside machines
  double other_switch = 0, other_pod = 0;  // shares of the connections that leave their switch, or their pod
  double busy = 0;                         // share of the step in which its transfers run
  AxisShares fair, head_of_line;           // max-min fairness; priority flow control alone
  BusyLink why_alone, why_together;        // max-min
};

struct NetworkAnalysis {
  NetworkOptions options;
  int machines = 0, switches_used = 0, pods_used = 0, links_used = 0;
  std::vector<AxisNetwork> axes;
  // Step times with each collective's fastest algorithm: with the full line rate for all, with fair shares, and with
  // the bound of priority flow control.
  double uncongested_s = 0, fair_s = 0, head_of_line_s = 0;
  FlapOdds flaps;  // of the links between the job's adapters and switches
};

// Fails with kUsage if the cluster's switches can't connect the job's machines. `workload` must be valid (problem_of).
Result<NetworkAnalysis> analyse_network(const Workload& workload, const Cluster& cluster,
                                        const NetworkOptions& options);

// Formats the analysis. `other`, if not null, is the same job with another placement, as a line for comparison.
std::string to_text(const NetworkAnalysis& network, const NetworkAnalysis* other, const Workload& workload,
                    const Cluster& cluster);
std::string to_json(const NetworkAnalysis& network, const Cluster& cluster);  // one object, no newline

// Returns a note for the user before a long analysis; "" if it takes only seconds.
std::string duration_note(int ranks);

}  // namespace tri
