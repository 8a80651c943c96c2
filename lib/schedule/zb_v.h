// The plans of zb_v: a pipeline without bubbles by list scheduling (Qi et al. 2024, "Pipeline parallelism with
// controllable memory", arXiv 2405.15362, V placement; plan.h).
#pragma once

#include <vector>

#include "lib/schedule/plan.h"

namespace tri {

// The most microbatches of a chunk whose activations zb_v keeps on a pp rank. Over both chunks they are 2 pp.size: the
// activations of 1F1B's first rank.
constexpr int zb_v_in_flight(Axis pp, int chunk) { return chunk == 0 ? 2 * pp.size - 1 - pp.rank : pp.rank + 1; }

// Returns the number of buffers of a chunk's inputs: as many as the previous virtual stage may keep activations.
constexpr int zb_v_inputs(Axis pp, int chunk) { return zb_v_in_flight(pp, chunk) + 1; }

// Returns the compute actions of all pp ranks. `costs`: (2 * pp_size) by virtual stage; transfers take no time. The
// plans depend only on the arguments, in integers, so every rank computes the same.
std::vector<Plan> zb_v_plans(int pp_size, int num_microbatches, const std::vector<StageCost>& costs);

}  // namespace tri
