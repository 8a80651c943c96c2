// Pipeline stages are a ring of one-way edges: edge e leads from stage e to the next one.
#pragma once

#include <algorithm>
#include <vector>

#include "lib/parallel/mesh.h"

namespace tri {

enum class RingEnd { kOpen, kClosed };  // closed: an edge leads from the last stage to the first

struct StageEdge {
  int from = 0, to = 0;        // stages
  int source = 0, target = 0;  // their world ranks, at this rank's position on all other axes

  std::vector<int> pair() const { return {std::min(source, target), std::max(source, target)}; }
};

// Whether an edge leads from `stage` to the next one.
bool has_edge(Axis pp, RingEnd end, int stage);
StageEdge stage_edge(const Mesh& mesh, int stage);
// Returns the edges that start or end at this rank's stage, in the order in which all ranks must connect them: even
// edges first, then odd ones, so that neighbours connect the same edge at the same time.
std::vector<StageEdge> own_edges(const Mesh& mesh, RingEnd end);

}  // namespace tri
