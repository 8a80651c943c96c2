// What `auto` means in a job: decided once, by one pure function of the config and of what all ranks found, before any
// memory is laid out. Everybody else reads the outcome: the JobPlan, or the config in which nothing is auto any more.
// `trireme check` asks the same function about ranks on paper.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "kernels/core/device.h"
#include "lib/comm/job.h"
#include "lib/config/config.h"
#include "lib/engine/job_facts.h"
#include "lib/engine/rank_tensors.h"
#include "lib/parallel/mesh.h"

namespace tri {

struct DevicePlan {
  DeviceKind kind = DeviceKind::kCpu;
  std::vector<int> ordinals;  // [world rank]: which of the devices that it sees a rank takes
};

struct JobPlan {
  DevicePlan device;
  Transfers tp = Transfers::kCollectives, dp = Transfers::kCollectives;  // never auto
  std::vector<PpTransfers> pp;                                           // [world rank]: to the next stage; never auto
  Recompute recompute = Recompute::kNone;  // auto only where nobody knows the free memory: on paper
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

// `config`, resolved for `ranks`, with the plan that those facts lead to: what memory is laid out by without a job.
Result<Config> plan_on_paper(const Config& config, int ranks, const GpuProperties& gpu = {});

struct PlannedJob {
  Config written;  // by the config file and the command line, nothing derived: for config.yaml. Of load_job_config
  Config requested;  // resolved; what was auto still is: for checkpoints, which outlive this job
  Config config;   // what the job runs with
  Mesh mesh;       // seen from this rank
  JobPlan plan;
};

// Gathers the facts and plans. `config` resolved for job.world_size(). Collective; the same error on all ranks.
Result<PlannedJob> plan_for_job(const Config& config, Job& job, EngineKind kind = EngineKind::kTraining);

// This rank's device. Collective; the same error on all ranks.
Result<std::unique_ptr<Device>> open_planned_device(const DevicePlan& plan, Job& job);

}  // namespace tri
