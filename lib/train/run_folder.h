// What a run keeps in its folder, run.dir, and whether it may go on from one of its checkpoints. For one rank of the
// job.
#pragma once

#include <string>

#include "io/checkpoint/manifest.h"
#include "io/checkpoint/run_lock.h"
#include "lib/config/config.h"

namespace tri {

// Makes the folder, and locks it and the checkpoints' against other jobs. `attempt`: this start's name (new_attempt()).
Result<RunLock> open_run_folder(const Config& config, const std::string& attempt);

// This start's name: that which a supervisor has given it (TRIREME_ATTEMPT), else a new one.
std::string own_attempt();

// Of a supervisor (TRIREME_JOB, TRIREME_RESTART), else Slurm's job of this process; "" where there is none.
BatchStart batch_start();

// When its job came into the scheduler's queue and when it got its nodes, in seconds since 1970; 0: not known. From
// TRIREME_SUBMITTED and TRIREME_ALLOCATED, which slurm/train.sbatch sets.
struct JobTimes {
  double submitted = 0, allocated = 0;
};
JobTimes job_times();

// Writes into the folder `dir`, each file whole or not at all:
//   config.yaml     `written`: what was asked for, from which the run can be started on other ranks and devices. It is
//                   left alone where it is `source`, the config file that this start was given
//   resolved.yaml   `decided`: every field as this start runs with it
Result<void> write_configs(const std::string& dir, const std::string& source, const Config& written,
                           const Config& decided);

// `config`: resolved, as the run would keep it in a checkpoint of its own. The log tells every field that differs from
// the config with which `manifest`, of the checkpoint in `folder`, was saved. Error (kUsage), naming each field with
// both values: a field that is fixed for the life of a checkpoint differs, and checkpoint.accept_changes does not say
// that this is meant. The error names accept_changes only where the weights keep their shapes. For one rank of the job.
Result<void> accept_checkpoint(const Config& config, const std::string& folder, const Manifest& manifest);

// A line when the learning rate of the next step, after `steps`, is far from that of the last one because the schedule
// has changed; it names both rates and how to keep either the schedule or the rate. "" when it is not. Both resolved.
std::string rate_warning(const Config& before, const Config& now, int64_t steps);

}  // namespace tri
