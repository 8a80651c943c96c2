// The mesh seen from one rank: its place on each axis, and the groups that it belongs to. All code gets groups,
// neighbours and places from it.
#pragma once

#include <string>
#include <vector>

#include "io/base/rank_grid.h"
#include "lib/parallel/axes.h"

namespace tri {

// This rank's place on one mesh axis.
struct Axis {
  int rank = 0;
  int size = 1;
  // Only of pp: the virtual stages go up the ranks and back down, so rank 0 holds both ends of the pipeline (the V of
  // lib/schedule/plan.h).
  bool folded = false;

  bool first() const { return rank == 0; }
  bool last() const { return rank == size - 1; }
  // Of pp: the rank that holds the last virtual stage, with the head and the loss, and whether it is this one.
  int end() const { return folded ? 0 : size - 1; }
  bool ends_here() const { return rank == end(); }
};

struct Mesh {
  RankGrid grid;  // without axes of one rank, except those that are always named
  int world_rank = 0;
  int ep = 1;           // ranks of a group along "ep" (kExpertAxes)
  bool folded = false;  // of the axis pp (Axis)

  int world_size() const { return grid.world_size(); }
  Axis axis(AxisName name) const;
  // Returns the position on the axis that several axes form together, in their order: the rank's index in group(axes).
  Axis joint_axis(AxisSet axes) const;
  // Returns the world ranks, ascending, that differ from this one only along `axes`.
  std::vector<int> group(AxisSet axes) const;
  // Returns this rank's place among the ranks that hold the same part of what is divided over `axes`: those with its
  // coordinates on `axes`, which must contain pp.
  Axis holders(AxisSet axes) const;
  // Returns the mesh seen from the rank that differs from this one only on `axis`, where it has coordinate `rank`.
  Mesh moved(AxisName axis, int rank) const;
  // Returns the mesh seen from another rank.
  Mesh seen_from(int rank) const { return {grid, rank, ep, folded}; }
  // Returns those of `axes` that have more than one rank.
  AxisSet divided(AxisSet axes) const;
  // Whether this rank is the first one of its stage that processes its tokens.
  bool first_of_replicas() const { return joint_axis(AxisSet::outside(kTokenAxes | AxisSet{"pp"})).first(); }
  std::string place() const { return grid.place(world_rank); }  // "pp1 dp0 tp3"
};

struct AxisSize {
  AxisName axis;
  int size = 1;
};

// Returns the mesh seen from `world_rank`, which must be in it. Axes that are not listed have one rank; of kExpertAxes
// only ep may be listed.
Mesh make_mesh(int world_rank, const std::vector<AxisSize>& sizes);

}  // namespace tri
