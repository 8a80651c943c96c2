// The config of a job, for the subcommands that run under mpirun: read by rank 0, resolved by all, planned.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "lib/checkpoint/weights.h"
#include "lib/comm/job.h"
#include "lib/engine/job_plan.h"

namespace tri {

// Rank 0 reads the file, and all ranks resolve the same text, so all get the same errors. Collective.
Result<PlannedJob> load_job_config(const std::string& path, const std::vector<std::string>& overrides, Job& job);

// The same for what is measured, with the plan in the log and this rank's device. Collective.
struct BenchJob {
  PlannedJob planned;
  std::unique_ptr<Device> device;
  const Config& config() const { return planned.config; }
  const Mesh& mesh() const { return planned.mesh; }
};
Result<BenchJob> open_bench_job(const std::string& path, const std::vector<std::string>& overrides, Job& job);

// The same for what tries several layouts: unresolved, except for run.device. Collective.
struct OpenConfig {
  Config config;
  DevicePlan device;
};
Result<OpenConfig> load_open_config(const std::string& path, const std::vector<std::string>& overrides, Job& job);

// A checkpoint's model in a job that only runs it.
struct CheckpointJob {
  OpenedCheckpoint checkpoint;
  int64_t step = 0;
  PlannedJob job;
};

// Finds the checkpoint that `path` means (lib/checkpoint/weights.h); its config, as forward_config leaves it, after the
// overrides, which leave the model as it was trained (check_model), and then `adjust`, whose weights the checkpoint
// holds. Overrides that name parallel.tp or pp stand for the whole layout: the other is 1, whatever wrote the
// checkpoint. Rank 0 alone reads. Nothing is written. Collective.
Result<CheckpointJob> load_checkpoint_config(const std::string& path, const std::vector<std::string>& overrides,
                                             Job& job, const std::function<void(Config&)>& adjust);

}  // namespace tri
