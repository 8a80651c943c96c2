// What a run finds and keeps in its folder, run.dir. Both are for one rank of the job.
#pragma once

#include <string>

#include "io/checkpoint/run_lock.h"
#include "lib/config/config.h"

namespace tri {

// Makes the folder, locks it and the checkpoints' against other jobs, and writes config.yaml. `attempt`: this start's
// name (new_attempt()).
Result<RunLock> open_run_folder(const Config& config, const std::string& attempt);

// Before metrics.jsonl, at `path`, is appended to by a run that begins after `completed` steps: the earlier lines up to
// that step stay; all of them are kept aside too, in metrics.N.jsonl.
Result<void> begin_metrics(const std::string& path, int64_t completed);

}  // namespace tri
