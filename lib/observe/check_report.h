// `trireme check`: what a config will do on a given number of ranks, without starting it.
#pragma once

#include <string>

#include "lib/engine/job_plan.h"

namespace tri {

// Topology, the plan, batch arithmetic, layers, parameters, bytes by name, FLOPs, bubble, traffic over dp, and how
// often to save (estimates.h). `config` resolved for `ranks`, `plan` made of it and of facts on paper (job_plan.h). The
// bytes come from running the set-up on a measuring arena: what a run's own table prints.
std::string check_report(const Config& config, const JobPlan& plan, int ranks);

}  // namespace tri
