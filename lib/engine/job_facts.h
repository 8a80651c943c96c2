// What all ranks found on their machines and devices, gathered before a job is planned (job_plan.h).
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "kernels/core/device.h"
#include "kernels/core/gpu.h"
#include "lib/comm/job.h"
#include "lib/config/config.h"
#include "lib/parallel/mesh.h"

namespace tri {

// What one rank found.
struct RankFacts {
  std::string machine;            // equal on ranks of one running machine, and on no others
  std::string node;               // the machine's name for people
  int node_size = 1;              // ranks that share it
  std::vector<std::string> gpus;  // that the rank sees, by ordinal; equal names are the same GPU
  std::string no_gpu_because;     // where it sees none
  // The rest only where it matters (add_device_facts).
  std::optional<int64_t> free_bytes;         // of the rank's device; on the CPU the machine's, for all its ranks
  std::optional<int64_t> workspace_bytes;    // that its kernels take in the rank's arena
  std::optional<GpuProperties> gpu;          // of the one that the rank takes
  std::optional<int64_t> most_shared_bytes;  // of the rank's device; none: not limited
  // Why memory of the tp group, of the dp group, of the next stage's rank can't be opened; "" where it can.
  std::string tp_problem, dp_problem, pp_problem;
};
using JobFacts = std::vector<RankFacts>;  // by world rank

bool on_one_machine(const std::vector<int>& group, const JobFacts& facts);

// Ranks as `config` describes them: machines of cluster.ranks_per_node ranks that open each other's memory, each with
// such a GPU of its own where run.device says cuda, or says auto and this machine has a GPU. Free memory is not known.
JobFacts facts_on_paper(const Config& config, int ranks, const GpuProperties& gpu = {});

// What can be found without a device: machines, and GPUs unless the choice is the CPU. Collective.
JobFacts gather_host_facts(DeviceChoice choice, Job& job);
// Adds what only devices can tell: of a GPU its properties; and where the config leaves something to it, free memory
// (recompute: auto), and whether a small allocation of each peer opens, where copies are wanted and the group is on one
// machine. Collective.
void add_device_facts(const Config& config, const Mesh& mesh, Job& job, Device& device, JobFacts& facts);

}  // namespace tri
