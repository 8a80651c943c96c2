// A whole run: data, steps, evaluation, samples, metrics, the closing summary.
#pragma once

#include <string>

#include "lib/comm/job.h"
#include "lib/config/config.h"
#include "lib/parallel/mesh.h"

namespace tri {

// `config` resolved for job.world_size(). Collective. Errors that the user can fix come back equal on all ranks.
Result<void> run_training(const Config& config, const Mesh& mesh, Job& job);

}  // namespace tri
