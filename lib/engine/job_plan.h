// What `auto` means in a job: decided once, by one pure function of the config and of what all ranks found, before any
// memory is laid out. Everybody else reads the outcome: the JobPlan, or the config in which nothing is auto any more.
// `trireme check` asks the same function about ranks on paper.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "kernels/core/device.h"
#include "lib/comm/job.h"
#include "lib/config/config.h"
#include "lib/engine/rank_tensors.h"
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
  std::optional<int64_t> free_bytes;       // of the rank's device; on the CPU the machine's, for all its ranks
  std::optional<int64_t> workspace_bytes;  // that its kernels take in the rank's arena
  std::optional<GpuProperties> gpu;        // of the one that the rank takes
  // Why memory of the tp group, of the dp group, of the next stage's rank can't be opened; "" where it can.
  std::string tp_problem, dp_problem, pp_problem;
  // Time of a layer's GEMMs in precision.compute over that in FP8 with their casts (precision.gemm: auto).
  std::optional<double> fp8_speedup;
  // What precision.gemm: auto meant at the last start of the run, with the same layers (kept_gemm.h), and that start's
  // kinds of GPUs. On a job of other kinds kept_gemm is none, for it is timed anew; kept_gpus tells people why.
  std::optional<GemmFormat> kept_gemm;
  std::string kept_gpus;
};
using JobFacts = std::vector<RankFacts>;  // by world rank

struct DevicePlan {
  DeviceKind kind = DeviceKind::kCpu;
  std::vector<int> ordinals;  // [world rank]: which of the devices that it sees a rank takes
};

struct JobPlan {
  DevicePlan device;
  Transfers tp = Transfers::kCollectives, dp = Transfers::kCollectives;  // never auto
  std::vector<PpTransfers> pp;                                           // [world rank]: to the next stage; never auto
  Recompute recompute = Recompute::kNone;  // auto only where nobody knows the free memory: on paper
  GemmFormat gemm = GemmFormat::kCompute;  // never auto
  std::string gpu_kinds;                   // of its ranks (kinds_of in kept_gemm.h); "" on the CPU
  std::vector<std::string> lines;          // a decision each, with its reason, for people
  std::vector<std::string> warnings;       // what is slow though it need not be, what has no effect
};

// run.device for the whole job. `cuda`, and `auto` where any rank sees a GPU: each rank takes the first GPU that it
// sees and no rank before it has taken, so it works where all ranks of a node see all of its GPUs and where each sees
// only its own. Error (kDevice), naming the node: a rank is left without. `auto` means the CPU only where no rank sees
// a GPU.
Result<DevicePlan> plan_device(DeviceChoice choice, const JobFacts& facts);

// `config` resolved for facts.size() ranks. tp and dp go by copies in all groups or in none; stages each where they
// can. `kind`: what the job's engines are for. Error (kUsage), naming the field: copies are insisted on and can't be
// had; no kernel of a rank's GPU takes the model's attention, or it has no FP8 and the config insists on that.
Result<JobPlan> plan_job(const Config& config, const JobFacts& facts, EngineKind kind = EngineKind::kTraining);

// `config` with the plan in place of what was auto. pp_transfers remains auto where stages differ: copies where the
// neighbour's memory can be opened.
Config with_plan(Config config, const JobPlan& plan);

// The plan as lines of a log.
std::string to_string(const JobPlan& plan);

// Ranks as `config` describes them: machines of cluster.ranks_per_node ranks that open each other's memory, each with
// an H200 of its own where run.device says cuda, or says auto and this machine has a GPU. Free memory is not known.
JobFacts facts_on_paper(const Config& config, int ranks);

// `config`, resolved for `ranks`, with the plan that those facts lead to: what memory is laid out by without a job.
Result<Config> plan_on_paper(const Config& config, int ranks);

// Forgets the last start's GEMMs on all ranks where its GPUs were of other kinds than those that the facts name.
void forget_gemm_of_other_gpus(JobFacts& facts);

// What can be found without a device: machines, and GPUs unless the choice is the CPU. Collective.
JobFacts gather_host_facts(DeviceChoice choice, Job& job);
// Adds what only devices can tell: of a GPU its properties; and where the config leaves something to it, free memory
// (recompute: auto), what FP8 gains (precision.gemm: auto), and whether a small allocation of each peer opens, where
// copies are wanted and the group is on one machine. Collective.
void add_device_facts(const Config& config, const Mesh& mesh, Job& job, Device& device, JobFacts& facts);

struct PlannedJob {
  Config written;  // by the config file and the command line, nothing derived: for config.yaml. Of load_job_config
  Config asked;    // resolved; what was auto still is: for checkpoints, which outlive this job
  Config config;   // what the job runs with
  Mesh mesh;       // seen from this rank
  JobPlan plan;
};

// Gathers the facts and plans. `config` resolved for job.world_size(). Collective; the same error on all ranks.
Result<PlannedJob> plan_for_job(const Config& config, Job& job, EngineKind kind = EngineKind::kTraining);

// This rank's device. Collective; the same error on all ranks.
Result<std::unique_ptr<Device>> open_planned_device(const DevicePlan& plan, Job& job);

}  // namespace tri
