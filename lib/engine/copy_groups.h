// Which ranks would copy into each other's memory, by the config alone: groups of tp and dp, neighbouring stages.
#pragma once

#include <vector>

#include "lib/config/config.h"
#include "lib/parallel/mesh.h"

namespace tri {

Mesh mesh_of(const Config& config, int world_rank);

// Whether the config wants copies on an axis, if they can be had.
bool wants_tp_copies(const Config& config);
bool wants_dp_copies(const Config& config);
bool wants_pp_copies(const Config& config);

// World ranks of the groups that `mesh`'s rank is in.
std::vector<int> tp_group(const Mesh& mesh);
std::vector<int> dp_group(const Mesh& mesh);

// Stages are a ring of one-way edges: edge e leads from stage e to the next one. Only chunks close the ring.
bool has_edge(const Config& config, int stage);
// World ranks at the ends of edge `stage`, the lower one first, in the tp and dp place of `mesh`'s rank.
std::vector<int> edge_pair(const Mesh& mesh, int stage);

}  // namespace tri
