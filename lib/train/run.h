// A whole run, from opened inputs to the closing summary: device, run folder, memory, state, steps.
#pragma once

#include "lib/comm/job.h"
#include "lib/engine/job_plan.h"
#include "lib/observe/startup.h"

namespace tri {

// Collective. Errors that the user can fix come back equal on all ranks. `startup` has timed what came before.
Result<void> run_training(const PlannedJob& planned, Job& job, StartupClock startup);

}  // namespace tri
