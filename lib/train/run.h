// A whole run, from opened inputs to the closing summary: device, run folder, memory, state, steps.
#pragma once

#include "lib/comm/job.h"
#include "lib/config/config.h"
#include "lib/observe/startup.h"
#include "lib/parallel/mesh.h"

namespace tri {

// `config` resolved for job.world_size(). Collective. Errors that the user can fix come back equal on all ranks.
// `startup` has timed what came before.
Result<void> run_training(const Config& config, const Mesh& mesh, Job& job, StartupClock startup);

}  // namespace tri
