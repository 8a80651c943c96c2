// Memory of a rank. For this program: its own plan, byte for byte, by running the set-up on a measuring arena. For any
// workload: the sum of the dominant terms, in microseconds, for searches and for other programs' published figures.
#pragma once

#include "kernels/core/gpu.h"
#include "lib/simulate/cluster.h"
#include "lib/simulate/workload.h"

namespace tri {

struct StepMemory {
  double parameters = 0;   // weights and gradients
  double optimizer = 0;    // master weights and states
  double activations = 0;  // of all microbatches in flight
  double workspace = 0;    // one layer's, the head's, and shared buffers
  double total() const { return parameters + optimizer + activations + workspace; }
};

// Returns the GPU properties that kernels need. GPUs with FP8 are assumed to be Hopper, others A100: a cluster file
// specifies only the number of multiprocessors.
GpuProperties gpu_of(const Cluster& cluster);

// Returns the bytes of the fullest rank on such GPUs. Within a few percent of planned_bytes for this program's
// workloads.
StepMemory estimate_memory(const Workload& workload, const GpuProperties& gpu);

// Returns the bytes of the fullest rank as the program allocates them, on such GPUs if run.device is cuda. `config`
// must be planned (lib/engine/job_plan.h).
int64_t planned_bytes(const Config& config, const GpuProperties& gpu);

// Returns what recompute: auto selects: the first level that fits into `room` bytes, else full.
Recompute planned_recompute(const Config& config, const GpuProperties& gpu, double room);

// Fails with kUsage if the config's GEMMs are in FP8 and the cluster's devices do not support it.
Result<void> check_numbers(const Config& config, const Cluster& cluster);

// Returns `config` with the number of ranks per node of the cluster file, and with run.device: auto replaced by cuda.
Config on_machines_of(const Cluster& cluster, Config config);

// Returns a sentence if the number of ranks per node in `config` differs from that of the cluster file, which replaces
// it, else "".
std::string ranks_note(const Cluster& cluster, const Config& config);

// Returns `config`, which is resolved for its ranks, with what its job would decide on the cluster's machines, as input
// for planned_bytes and workload_of. Keeps recompute: auto with run.device: cpu. Fails with kUsage if the job would
// reject the config.
Result<Config> planned_for(Config config, const Cluster& cluster);

inline constexpr double kGib = 1024.0 * 1024 * 1024;  // bytes

int64_t free_bytes_of(const Cluster& cluster);  // of a rank's device, before the start

// Returns the bytes of a rank's device that the arena may use; the rest is for communicators and libraries.
double room_of(const Cluster& cluster);

}  // namespace tri
