// Memory of a rank. Of this program: its own plan, byte for byte, by running the set-up on a measuring arena. Of any
// workload: the sums that dominate, in microseconds, for searches and for other programs' published figures.
#pragma once

#include "lib/simulate/cluster.h"
#include "lib/simulate/workload.h"

namespace tri {

struct StepMemory {
  double parameters = 0;   // weights and gradients
  double optimizer = 0;    // master weights and states
  double activations = 0;  // of all microbatches in flight
  double workspace = 0;    // one layer's, the head's and the buffers that are shared
  double total() const { return parameters + optimizer + activations + workspace; }
};

// Bytes of the fullest rank. Within some per cent of planned_bytes for this program's workloads.
StepMemory estimate_memory(const Workload& workload);

// Bytes of the fullest rank as the program lays them out. `config` planned (lib/engine/job_plan.h).
int64_t planned_bytes(const Config& config);
// What attention's scratch takes more on GPUs before Hopper, where cuDNN goes backward: planned_bytes() is for a
// Hopper. 0 on Hoppers and on the CPU.
int64_t attention_bytes_before_hopper(const Workload& w, const Cluster& cluster, DeviceChoice device);

// `config`, resolved for its ranks, with what its job would decide on the cluster's machines, as planned_bytes and
// workload_of want it; recompute: auto stays. Error (kUsage): the job would refuse it.
Result<Config> planned_for(Config config, const Cluster& cluster);

// Bytes of a rank's device that the arena may take: the rest is for communicators and libraries.
double room_of(const Cluster& cluster);

}  // namespace tri
