// Predicts a step without a slow rank: runs the simulator of plans (lib/schedule/pipeline.h) on measured times.
#pragma once

#include <optional>
#include <string>

#include "io/ranks/rank_times.h"

namespace tri {

// Returns the seconds of a step in which `world_rank` has the compute and send times of its role's median, and
// everything else is as in the window. None if the mesh's schedule is unknown to this version.
std::optional<double> step_without(const RankMesh& mesh, const RankWindow& window, int world_rank);

// Formats the result from the seconds of a step with and without the rank.
std::string what_if_text(double step, double without);

}  // namespace tri
