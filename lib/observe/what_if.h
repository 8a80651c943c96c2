// What a step would take without a slow rank: the simulator of plans (lib/simulate/pipeline.h) on measured times.
#pragma once

#include <optional>
#include <string>

#include "io/ranks/rank_times.h"

namespace tri {

// Seconds of a step in which `world_rank` computes and sends as long as its role's median, and all else is as it was in
// the window. None: the mesh's schedule is not known here.
std::optional<double> step_without(const RankMesh& mesh, const RankWindow& window, int world_rank);

// The result as text, from the seconds of a step with and without the rank.
std::string what_if_text(double step, double without);

}  // namespace tri
