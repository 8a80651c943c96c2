// What each of a config's choices gains: the same step without it.
#pragma once

#include <string>
#include <vector>

#include "lib/simulate/step_model.h"

namespace tri {

struct AblationRow {
  std::string name;  // "without tp overlap"; the first row is the config's own, "as configured"
  StepPrediction step;
};

// The config's own step, then one row for each choice that it makes, undone alone; others have no row.
std::vector<AblationRow> ablation_rows(const Workload& workload, const Cluster& cluster, Stragglers stragglers);

}  // namespace tri
