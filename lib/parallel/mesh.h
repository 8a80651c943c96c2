// The 3D mesh: world rank <-> (pp, dp, tp). tp is fastest, so that a tp group lies inside a node; pp is slowest.
#pragma once

#include <string>

namespace tri {

// This rank's place on one mesh axis.
struct Axis {
  int rank = 0;
  int size = 1;
  bool first() const { return rank == 0; }
  bool last() const { return rank == size - 1; }
};

struct Mesh {
  Axis tp, dp, pp;
  int world_rank = 0;

  int world_size() const { return tp.size * dp.size * pp.size; }
  // World rank of the given coordinates.
  int rank_at(int pp_rank, int dp_rank, int tp_rank) const { return (pp_rank * dp.size + dp_rank) * tp.size + tp_rank; }
  std::string place() const;  // "pp1 dp0 tp3"
};

// The mesh seen from `world_rank`; requires world_rank < tp * dp * pp.
Mesh make_mesh(int world_rank, int tp, int dp, int pp);

}  // namespace tri
