// Loads the config of a subcommand that runs under mpirun: rank 0 reads the file, every rank resolves and plans it.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "lib/checkpoint/weights.h"
#include "lib/comm/job/job.h"
#include "lib/engine/job_plan.h"

namespace tri {

// Rank 0 reads the file, and all ranks resolve the same text, so all get the same errors. Collective.
Result<PlannedJob> load_job_config(const std::string& path, const std::vector<std::string>& overrides, Job& job);

// The same for benchmarks, with the plan in the log and this rank's device. Collective.
struct BenchJob {
  PlannedJob planned;
  std::unique_ptr<Device> device;
  const Config& config() const { return planned.config; }
  const Mesh& mesh() const { return planned.mesh; }
};
Result<BenchJob> open_bench_job(const std::string& path, const std::vector<std::string>& overrides, Job& job);

// The same for commands that try several layouts: unresolved, except for run.device. Collective.
struct OpenConfig {
  Config config;
  DevicePlan device;
};
Result<OpenConfig> load_open_config(const std::string& path, const std::vector<std::string>& overrides, Job& job);

// A checkpoint's model in a job that runs it without training.
struct CheckpointJob {
  OpenedCheckpoint checkpoint;
  int64_t step = 0;
  PlannedJob job;
};

// Finds the checkpoint that `path` names (lib/checkpoint/weights.h), which must have `weights`, and returns its config
// after forward_config, the overrides, which must not change the trained model (check_model), and then `adjust`, which
// must fit the checkpoint's weights. If overrides name parallel.tp or pp, the other one is 1, whatever layout wrote the
// checkpoint. Only rank 0 reads. Writes nothing. Collective.
Result<CheckpointJob> load_checkpoint_config(const std::string& path, const std::vector<std::string>& overrides,
                                             WeightSet weights, Job& job, const std::function<void(Config&)>& adjust);

}  // namespace tri
