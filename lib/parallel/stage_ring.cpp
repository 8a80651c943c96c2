#include "lib/parallel/stage_ring.h"

namespace tri {

bool has_edge(Axis pp, RingEnd end, int stage) {
  return pp.size > 1 && (stage + 1 < pp.size || end == RingEnd::kClosed);
}

StageEdge stage_edge(const Mesh& mesh, int stage) {
  const int next = (stage + 1) % mesh.axis("pp").size;
  return {stage, next, mesh.moved("pp", stage).world_rank, mesh.moved("pp", next).world_rank};
}

std::vector<StageEdge> own_edges(const Mesh& mesh, RingEnd end) {
  const Axis pp = mesh.axis("pp");
  std::vector<StageEdge> edges;
  for (const int parity : {0, 1})
    for (int stage = parity; stage < pp.size; stage += 2) {
      const StageEdge edge = stage_edge(mesh, stage);
      if (has_edge(pp, end, stage) && (edge.from == pp.rank || edge.to == pp.rank)) edges.push_back(edge);
    }
  return edges;
}

}  // namespace tri
