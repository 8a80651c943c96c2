// The simulator's predictions for a config on a cluster as one HTML page, like the report of runs: the parts of a step,
// weak and strong scaling, ablation, layouts, start-up.
#pragma once

#include <string>
#include <vector>

#include "lib/report/page.h"
#include "lib/simulate/ablation.h"
#include "lib/simulate/planner.h"
#include "lib/simulate/scaling.h"
#include "lib/simulate/simulation.h"

namespace tri {

struct SimulationReport {
  Simulation simulation;
  std::vector<ScalingRow> weak, strong;
  std::vector<AblationRow> ablation;
  std::vector<PlannedLayout> layouts;  // the best of a search, best first; may be empty
};

std::string simulation_page(const SimulationReport& report, const PageHead& head);

}  // namespace tri
