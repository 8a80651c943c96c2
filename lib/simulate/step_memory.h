// Memory of a rank. Of this program: its own plan, byte for byte, by running the set-up on a measuring arena. Of any
// workload: the sums that dominate, in microseconds, for searches and for other programs' published figures.
#pragma once

#include "kernels/core/gpu.h"
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

// What kernels must know of the cluster's GPUs. Those that multiply FP8 are taken for Hoppers, the others for A100s:
// alongside the multiprocessors a cluster file says no more.
GpuProperties gpu_of(const Cluster& cluster);

// Bytes of the fullest rank, on such GPUs. Within some per cent of planned_bytes for this program's workloads.
StepMemory estimate_memory(const Workload& workload, const GpuProperties& gpu);

// Bytes of the fullest rank as the program lays them out, on such GPUs where run.device is cuda. `config` planned
// (lib/engine/job_plan.h).
int64_t planned_bytes(const Config& config, const GpuProperties& gpu);

// What recompute: auto means there: the first level with which that fits into `room` bytes, else full.
Recompute planned_recompute(const Config& config, const GpuProperties& gpu, double room);

// Error (kUsage): the config's GEMMs are in FP8, which the cluster's devices do not multiply.
Result<void> check_numbers(const Config& config, const Cluster& cluster);

// `config`, resolved for its ranks, with what its job would decide on the cluster's machines, as planned_bytes and
// workload_of want it; recompute: auto stays. Error (kUsage): the job would refuse it.
Result<Config> planned_for(Config config, const Cluster& cluster);

// Bytes of a rank's device that the arena may take: the rest is for communicators and libraries.
double room_of(const Cluster& cluster);

}  // namespace tri
