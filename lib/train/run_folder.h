// The files of a run in its folder, run.dir, and the check of whether it may resume from one of its checkpoints. Each
// function runs on one rank of the job.
#pragma once

#include <optional>
#include <string>

#include "io/checkpoint/manifest.h"
#include "io/checkpoint/run_lock.h"
#include "lib/config/config.h"

namespace tri {

// Creates the folder, and locks it and that of the checkpoints against other jobs. `attempt`: the name of this start
// (new_attempt()). Fails if another job holds a lock, or with kFile.
Result<RunLock> open_run_folder(const Config& config, const std::string& attempt);

// Returns the name of this start: the one set by a supervisor (TRIREME_ATTEMPT), else a new one.
std::string own_attempt();

// Returns the job of a supervisor (TRIREME_JOB, TRIREME_RESTART), else the Slurm job of this process, else "".
BatchStart batch_start();

// When the job was submitted and when it got its nodes, in seconds since 1970; 0: unknown. From TRIREME_SUBMITTED and
// TRIREME_ALLOCATED, which slurm/train.sbatch sets.
struct JobTimes {
  double submitted = 0, allocated = 0;
};
JobTimes job_times();

// Writes into the folder `dir`, each file atomically:
//   config.yaml     `written`: the requested config, from which the run can be started on other ranks and devices.
//                   Unchanged if it is `source`, the config file of this start
//   resolved.yaml   `decided`: every field as this start runs with it
Result<void> write_configs(const std::string& dir, const std::string& source, const Config& written,
                           const Config& decided);

// Checks that the run may resume from the checkpoint in `folder` with this `manifest`. `config`: resolved, as the run
// would save it in its own checkpoints. Logs every field that differs from the checkpoint's config. Fails with kUsage,
// naming each field with both values, if a field differs that must not change and that checkpoint.accept_changes does
// not name. The error suggests accept_changes only if the weights keep their shapes.
Result<void> accept_checkpoint(const Config& config, const std::string& folder, const Manifest& manifest);

// Returns a warning if the learning rate of the next step, after `steps`, is far from that of the last one because the
// schedule has changed, else "". It names both rates and how to keep either the schedule or the rate. Both configs are
// resolved. `consumed`: the samples of these steps; none: as many as the steps of `before` consume.
std::string rate_warning(const Config& before, const Config& now, int64_t steps,
                         std::optional<int64_t> consumed = std::nullopt);

}  // namespace tri
