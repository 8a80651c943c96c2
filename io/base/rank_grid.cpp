#include "io/base/rank_grid.h"

#include <fmt/format.h>
#include <algorithm>
#include <cstdint>
#include <limits>

namespace tri {
namespace {

// Returns the product, saturated: a damaged file may contain any sizes.
int times(int a, int b) { return static_cast<int>(std::min<int64_t>(int64_t{a} * b, std::numeric_limits<int>::max())); }

// The stride of an axis that is not listed does not matter, because its size is 1.
struct Line {
  int stride = 1, size = 1;
};

Line line_of(const std::vector<GridAxis>& axes, std::string_view name) {
  int stride = 1;
  for (const GridAxis& axis : axes) {
    if (axis.name == name) return {stride, axis.size};
    stride = times(stride, axis.size);
  }
  return {};
}

}  // namespace

int RankGrid::world_size() const {
  int count = 1;
  for (const GridAxis& axis : axes) count = times(count, axis.size);
  return count;
}

int RankGrid::size(std::string_view axis) const { return line_of(axes, axis).size; }

int RankGrid::stride(std::string_view axis) const { return line_of(axes, axis).stride; }

int RankGrid::rank_on(std::string_view axis, int world_rank) const {
  const Line line = line_of(axes, axis);
  return world_rank / line.stride % line.size;
}

int RankGrid::rank_at(const std::vector<std::pair<std::string_view, int>>& coordinates) const {
  int world_rank = 0;
  for (const auto& [axis, rank] : coordinates) world_rank += rank * line_of(axes, axis).stride;
  return world_rank;
}

int RankGrid::moved(int world_rank, std::string_view axis, int to) const {
  return world_rank + (to - rank_on(axis, world_rank)) * line_of(axes, axis).stride;
}

std::vector<int> RankGrid::group(int world_rank, const std::vector<std::string_view>& along) const {
  std::vector<int> ranks{world_rank};
  for (const GridAxis& axis : axes) {
    if (std::ranges::find(along, axis.name) == along.end()) continue;
    std::vector<int> wider;
    for (int to = 0; to < axis.size; ++to)
      for (const int rank : ranks) wider.push_back(moved(rank, axis.name, to));
    ranks = std::move(wider);
  }
  return ranks;
}

std::vector<int> RankGrid::group_without(int world_rank, const std::vector<std::string_view>& fixed) const {
  std::vector<std::string_view> along;
  for (const GridAxis& axis : axes)
    if (std::ranges::find(fixed, axis.name) == fixed.end()) along.push_back(axis.name);
  return group(world_rank, along);
}

std::string RankGrid::place(int world_rank) const {
  std::string text;
  for (size_t i = axes.size(); i-- > 0;)
    text += fmt::format("{}{}{}", text.empty() ? "" : " ", axes[i].name, rank_on(axes[i].name, world_rank));
  return text;
}

std::string RankGrid::sizes() const {
  std::string text;
  for (const GridAxis& axis : axes) text += fmt::format("{}{} {}", text.empty() ? "" : " x ", axis.name, axis.size);
  return text;
}

RankGrid unnamed_grid(int pp, int dp, int tp) { return {{{"tp", tp}, {"dp", dp}, {"pp", pp}}}; }

}  // namespace tri
