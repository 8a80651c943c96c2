// A grid of ranks with named axes: world rank <-> coordinates. Files and records describe the grid of their job by such
// a list; lib/parallel/mesh.h names the axes of this program.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace tri {

struct GridAxis {
  std::string name;
  int size = 1;
  bool operator==(const GridAxis&) const = default;
};

// An axis that a grid does not list has one rank.
struct RankGrid {
  std::vector<GridAxis> axes;  // fastest first: neighbours on axes[0] have consecutive world ranks

  int world_size() const;
  int size(std::string_view axis) const;
  // Returns the distance between the world ranks of neighbours on `axis`; 1 if the grid does not list it.
  int stride(std::string_view axis) const;
  // Returns the coordinate of `world_rank` on `axis`.
  int rank_on(std::string_view axis, int world_rank) const;
  // Returns the world rank of these coordinates; axes that are not named count as 0.
  int rank_at(const std::vector<std::pair<std::string_view, int>>& coordinates) const;
  // Returns the rank at `to` on one axis, with the other coordinates of `world_rank`.
  int moved(int world_rank, std::string_view axis, int to) const;
  // Returns the world ranks, ascending, that agree with `world_rank` on all axes other than `along`.
  std::vector<int> group(int world_rank, const std::vector<std::string_view>& along) const;
  // Returns the world ranks, ascending, that agree with `world_rank` on the axes `fixed`.
  std::vector<int> group_without(int world_rank, const std::vector<std::string_view>& fixed) const;

  std::string place(int world_rank) const;  // "pp1 dp0 tp3": slowest first
  std::string sizes() const;                // "tp 4 x dp 1 x pp 2": fastest first
  bool operator==(const RankGrid&) const = default;
};

// Returns the grid of files and records that list the sizes of three axes without their names.
RankGrid unnamed_grid(int pp, int dp, int tp);

}  // namespace tri
