// Pipeline stages are a ring of one-way edges: edge e leads from stage e to the next one.
#pragma once

#include <algorithm>
#include <vector>

#include "lib/parallel/mesh.h"

namespace tri {

enum class RingEnd { kOpen, kClosed };  // closed: an edge leads from the last stage to the first

struct StageEdge {
  int from = 0, to = 0;        // stages
  int source = 0, target = 0;  // their world ranks, at the place of the mesh's rank on all other axes

  std::vector<int> pair() const { return {std::min(source, target), std::max(source, target)}; }
};

// Whether an edge leads on from `stage`.
bool has_edge(Axis pp, RingEnd end, int stage);
StageEdge stage_edge(const Mesh& mesh, int stage);
// The edges of which this rank's stage is an end, in the order in which all ranks must connect them: even edges first,
// then odd ones, so that neighbours work on the same edge at once and in one order.
std::vector<StageEdge> own_edges(const Mesh& mesh, RingEnd end);

}  // namespace tri
