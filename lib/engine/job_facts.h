// What all ranks found on their machines and devices, gathered before a job is planned (job_plan.h).
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "kernels/core/device.h"
#include "kernels/core/gpu.h"
#include "lib/comm/job/job.h"
#include "lib/config/config.h"
#include "lib/parallel/mesh.h"

namespace tri {

// What one rank found.
struct RankFacts {
  std::string machine;            // equal on all ranks of one running machine, different on other machines
  std::string node;               // the machine's name, for messages
  int node_size = 1;              // ranks on that machine
  std::vector<std::string> gpus;  // GPUs that the rank sees, by ordinal; equal names are the same GPU
  std::string no_gpu_because;     // why the rank sees no GPU
  // add_device_facts() fills the rest if it is needed.
  std::optional<int64_t> free_bytes;         // of the rank's device; on the CPU of the machine, for all its ranks
  std::optional<int64_t> workspace_bytes;    // of the rank's kernels, in its arena
  std::optional<GpuProperties> gpu;          // of the GPU that the rank uses
  std::optional<int64_t> most_shared_bytes;  // of the rank's device; none: no limit
  // Why memory of the tp group, the dp group, the next stage's rank or the ranks that divide the experts cannot be
  // opened; "" if it can.
  std::string tp_problem, dp_problem, pp_problem, ep_problem;
};
using JobFacts = std::vector<RankFacts>;  // by world rank

bool on_one_machine(const std::vector<int>& group, const JobFacts& facts);  // world ranks of a group

// Returns facts for ranks that do not exist, as `config` describes them: machines of cluster.ranks_per_node ranks that
// can open each other's memory. Each rank has its own GPU `gpu` if run.device is cuda, or auto and this machine has a
// GPU; `free_bytes` of that GPU's memory are free. Without GPUs, or without `free_bytes`, free memory is unknown.
JobFacts facts_on_paper(const Config& config, int ranks, const GpuProperties& gpu = {},
                        std::optional<int64_t> free_bytes = {});
// Free bytes of an H100 of 80 GB at the start of a process (device.memory_gib of configs/clusters/h100.yaml).
inline constexpr int64_t kFreeBytesOfH100 = (int64_t{786} << 30) / 10;

// Returns what can be found without a device: machines, and GPUs unless the choice is the CPU. Collective.
JobFacts gather_host_facts(DeviceChoice choice, Job& job);
// Adds what needs a device: a GPU's properties and, where the config leaves the decision to it, the free memory
// (recompute or schedule: auto) and whether a small allocation of each peer can be opened (if copies are wanted and the
// group is on one machine). Collective.
void add_device_facts(const Config& config, const Mesh& mesh, Job& job, Device& device, JobFacts& facts);

}  // namespace tri
