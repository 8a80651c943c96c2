#include "lib/engine/job_facts.h"

#include <algorithm>

#include "kernels/core/arena.h"
#include "kernels/core/shared_limit.h"
#include "lib/comm/peer/memory.h"
#include "lib/config/axis_fields.h"
#include "lib/engine/rank_tensors.h"
#include "lib/engine/wanted_copies.h"
#include "lib/optim/flat_layout.h"

namespace tri {

template <class Archive>
void fields(Archive& archive, RankFacts& f) {
  archive(f.machine, f.node, f.node_size, f.gpus, f.no_gpu_because, f.free_bytes, f.workspace_bytes, f.gpu,
          f.most_shared_bytes, f.tp_problem, f.dp_problem, f.pp_problem, f.ep_problem);
}

namespace {

// Returns why the members of a group on one machine can't open each other's memory, or "". Tries a small allocation.
std::string problem_of_opening(const std::vector<int>& group, Job& job, Device& device, const Arena& arena,
                               const JobFacts& facts) {
  if (!on_one_machine(group, facts)) return "";
  const auto opened = PeerArenas::open(group, job, device, arena);
  return opened ? "" : opened.error().message;
}

}  // namespace

bool on_one_machine(const std::vector<int>& group, const JobFacts& facts) {
  const std::string& machine = facts[static_cast<size_t>(group.front())].machine;
  return std::all_of(group.begin(), group.end(),
                     [&](int rank) { return facts[static_cast<size_t>(rank)].machine == machine; });
}

JobFacts facts_on_paper(const Config& config, int ranks, const GpuProperties& gpu, std::optional<int64_t> free_bytes) {
  const bool gpus =
      config.run.device == DeviceChoice::kCuda || (config.run.device == DeviceChoice::kAuto && visible_gpus().ok());
  const int a_node = config.cluster.ranks_per_node;
  Arena measuring(gpu);
  if (gpus && free_bytes) take_kernel_workspace(config, mesh_of(config, 0), measuring);
  JobFacts facts;
  for (int rank = 0; rank < ranks; ++rank) {
    const std::string node = fmt::format("node {}", rank / a_node);
    RankFacts& f = facts.emplace_back(RankFacts{.machine = node, .node = node, .node_size = std::min(a_node, ranks)});
    if (!gpus) continue;
    f.gpus = {fmt::format("GPU of rank {}", rank)};
    f.gpu = gpu;
    if (!free_bytes) continue;
    f.free_bytes = free_bytes;
    f.workspace_bytes = measuring.used();
  }
  return facts;
}

JobFacts gather_host_facts(DeviceChoice choice, Job& job) {
  RankFacts mine{.machine = job.machine(), .node = job.host(), .node_size = job.node_size()};
  if (choice != DeviceChoice::kCpu) {
    auto gpus = visible_gpus();
    if (gpus)
      mine.gpus = std::move(gpus).value();
    else
      mine.no_gpu_because = gpus.error().message;
  }
  return job.all_gather(mine);
}

// Handles the groups of this rank one after another, in an order that all their members share (see own_edges).
void add_device_facts(const Config& config, const Mesh& mesh, Job& job, Device& device, JobFacts& facts) {
  const bool needs_memory =
      config.parallel.recompute == Recompute::kAuto || config.parallel.schedule == Schedule::kAuto;
  const bool tp = wants_tp_copies(config), dp = wants_dp_copies(config), pp = wants_pp_copies(config),
             ep = wants_ep_copies(config);
  if (device.kind() == DeviceKind::kCpu && !needs_memory && !tp && !dp && !pp && !ep) return;
  RankFacts mine = facts[static_cast<size_t>(job.world_rank())];
  mine.gpu = device.gpu_properties();
  if (needs_memory) {
    mine.free_bytes = device.free_bytes();
    Arena measuring(device);
    take_kernel_workspace(config, mesh, measuring);
    mine.workspace_bytes = measuring.used();
  }
  if (device.kind() == DeviceKind::kCpu) mine.most_shared_bytes = most_shared_cpu_bytes();
  const Arena arena(device, Arena::kAlignment);
  const auto problem = [&](const std::vector<int>& group) {
    return problem_of_opening(group, job, device, arena, facts);
  };
  if (tp) mine.tp_problem = problem(mesh.group({"tp"}));
  if (dp) mine.dp_problem = problem(mesh.group(kBucketAxes));
  if (ep) mine.ep_problem = problem(mesh.group({"ep"}));
  for (const StageEdge& edge : pp ? own_edges(mesh, ring_end(config)) : std::vector<StageEdge>()) {
    const std::string found = problem(edge.pair());
    if (edge.source == mesh.world_rank) mine.pp_problem = found;
  }
  facts = job.all_gather(mine);
}

}  // namespace tri
