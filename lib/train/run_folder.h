// What a run keeps in its folder, run.dir. For one rank of the job.
#pragma once

#include <string>

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

}  // namespace tri
