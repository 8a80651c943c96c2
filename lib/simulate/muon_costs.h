// What Muon's steps of whole matrices cost, on the busiest rank of a stage: lib/optim/muon_plan.h.
#pragma once

#include "lib/simulate/cluster.h"
#include "lib/simulate/workload.h"

namespace tri {

struct MuonCosts {
  double gemms = 0;            // seconds of the iterations
  double bytes = 0;            // memory traffic, in addition to that of an optimizer of the Adam family
  double exchanged = 0;        // bytes that all ranks of the stage exchange, in either direction
  int windows = 1;             // exchanges of the first and the last one do not overlap
  double workspace_bytes = 0;  // memory
};

// Zeros unless the workload's optimizer is muon. `stage`: a pp rank.
MuonCosts muon_costs(const Workload& workload, const Layers& layers, const Cluster& cluster, int stage);
// The memory alone.
double muon_workspace_bytes(const Workload& workload, const Layers& layers, int stage);

}  // namespace tri
