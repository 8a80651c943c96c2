// Decides what `auto` means in a job: once, by a pure function of the config and of what all ranks found, before any
// memory is allocated. Everything else reads the result: the JobPlan, or the config without any auto. `trireme check`
// calls the same function with facts_on_paper().
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "kernels/core/device.h"
#include "lib/comm/job/job.h"
#include "lib/config/config.h"
#include "lib/engine/job_facts.h"
#include "lib/engine/rank_tensors.h"
#include "lib/parallel/mesh.h"

namespace tri {

struct DevicePlan {
  DeviceKind kind = DeviceKind::kCpu;
  std::vector<int> ordinals;  // [world rank]: the device that a rank uses, among those that it sees
};

struct JobPlan {
  DevicePlan device;
  Transfers tp = Transfers::kCollectives, dp = Transfers::kCollectives;  // never auto
  Transfers ep = Transfers::kCollectives;                                // never auto
  std::vector<PpTransfers> pp;                                           // [world rank]: to the next stage; never auto
  std::optional<Schedule> schedule;                                      // if the config has auto
  Recompute recompute = Recompute::kNone;  // auto only if the free memory is unknown (facts_on_paper)
  std::vector<std::string> lines;          // one decision per line, with its reason, for the log
  std::vector<std::string> warnings;       // settings that are needlessly slow, have no effect, or do not fit
};

// Resolves run.device for the whole job. With `cuda`, or with `auto` if any rank sees a GPU, each rank gets the first
// GPU that it sees and that no lower rank has got. This works if all ranks of a node see all of its GPUs, and if each
// rank sees only its own. `auto` means the CPU only if no rank sees a GPU. Fails with kDevice, naming the node, if a
// rank gets none.
Result<DevicePlan> plan_device(DeviceChoice choice, const JobFacts& facts);

// Plans `config`, resolved for facts.size() ranks, for engines of `kind`. tp and dp use copies in all groups or in
// none; each stage decides for itself. Fails with kUsage, naming the field, if the config insists on copies or FP8 that
// a rank cannot have, or if no kernel of a rank's GPU supports the model's attention.
Result<JobPlan> plan_job(const Config& config, const JobFacts& facts, EngineKind kind = EngineKind::kTraining);

// Returns `config` with auto replaced by the plan. pp_transfers remains auto if stages differ: they then copy where the
// neighbour's memory can be opened.
Config with_plan(Config config, const JobPlan& plan);

// Returns the plan as lines of a log.
std::string to_string(const JobPlan& plan);

// Returns `config`, resolved for `ranks`, with the plan for facts_on_paper(), so that memory can be planned without a
// job.
Result<Config> plan_on_paper(const Config& config, int ranks, const GpuProperties& gpu = {},
                             std::optional<int64_t> free_bytes = {});

struct PlannedJob {
  // as set by the config file and the command line, nothing derived: for config.yaml. Set by load_job_config
  Config written;
  Config requested;  // resolved, with auto kept: for checkpoints, which outlive this job
  Config config;     // what the job runs with
  Mesh mesh;         // as seen from this rank
  JobPlan plan;
};

// Gathers the facts and plans. `config` must be resolved for job.world_size(). Collective; fails alike on all ranks.
Result<PlannedJob> plan_for_job(const Config& config, Job& job, EngineKind kind = EngineKind::kTraining);

// Opens this rank's device. Collective; fails alike on all ranks.
Result<std::unique_ptr<Device>> open_planned_device(const DevicePlan& plan, Job& job);

}  // namespace tri
