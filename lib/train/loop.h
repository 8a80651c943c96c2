// A whole run: data, steps, evaluation, samples, metrics, the closing summary.
#pragma once

#include <string>

#include "lib/comm/job.h"
#include "lib/engine/job_plan.h"
#include "lib/observe/startup.h"

namespace tri {

// Collective. Errors that the user can fix come back equal on all ranks. `startup` has timed what came before.
Result<void> run_training(const PlannedJob& planned, Job& job, StartupClock startup);

}  // namespace tri
