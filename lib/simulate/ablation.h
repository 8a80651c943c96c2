// What each of a config's optimizations gains: the same step without it.
#pragma once

#include <string>
#include <vector>

#include "lib/simulate/step_model.h"

namespace tri {

struct AblationRow {
  std::string name;  // "without tp overlap"; the first row is the config's own, "as configured"
  StepPrediction step;
};

// Returns the config's own step, then one row for each optimization that it uses, with only that one undone.
std::vector<AblationRow> ablation_rows(const Workload& workload, const Cluster& cluster, Stragglers stragglers);

}  // namespace tri
