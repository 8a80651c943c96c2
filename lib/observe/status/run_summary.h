// What a run logs at its start and its end.
#pragma once

#include <vector>

#include "kernels/core/arena.h"
#include "lib/comm/job/job.h"
#include "lib/config/config.h"
#include "lib/data/order.h"
#include "lib/observe/metrics/step_times.h"
#include "lib/parallel/mesh.h"

namespace tri {

// Logs model, mesh, data, and the arena's bytes by name. Call on world rank 0.
void log_run(const Config& config, const Mesh& mesh, const OrderFields& order, const Arena& arena);

// Logs how the time of all steps was spent, as a mean over ranks, and how long the other streams were busy alongside
// it, if the backend measures that. Collective.
void log_summary(Job& job, const Mesh& mesh, const StepTimes& steps, const std::vector<NamedTimes>& streams,
                 double wall_seconds);

// Logs what was read from token files for `steps` steps; `bytes`: by this rank. Collective.
void log_data(Job& job, const Mesh& mesh, int64_t bytes, int64_t steps);

std::string bytes_table(const Arena& arena);  // lines "  parameters  1.50 GiB", then the total

}  // namespace tri
