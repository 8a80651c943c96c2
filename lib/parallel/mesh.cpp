#include "lib/parallel/mesh.h"

#include "io/base/error.h"

namespace tri {
namespace {

std::vector<std::string_view> names_of(AxisSet axes) {
  std::vector<std::string_view> names;
  for (size_t i = 0; i < kAxes.size(); ++i)
    if (axes.contains(AxisName::at(i))) names.push_back(kAxes[i].name);
  return names;
}

}  // namespace

std::string to_string(AxisSet axes) {
  std::string text;
  for (const std::string_view name : names_of(axes)) text += fmt::format("{}{}", text.empty() ? "" : ", ", name);
  return "{" + text + "}";
}

Axis Mesh::axis(AxisName name) const { return {grid.rank_on(name.text(), world_rank), grid.size(name.text())}; }

Axis Mesh::joint_axis(AxisSet axes) const {
  Axis joint;
  for (const std::string_view name : names_of(axes)) {
    joint.rank += joint.size * grid.rank_on(name, world_rank);
    joint.size *= grid.size(name);
  }
  return joint;
}

std::vector<int> Mesh::group(AxisSet axes) const { return grid.group(world_rank, names_of(axes)); }

Mesh Mesh::moved(AxisName axis, int rank) const { return {grid, grid.moved(world_rank, axis.text(), rank)}; }

AxisSet Mesh::divided(AxisSet axes) const {
  AxisSet divided;
  for (size_t i = 0; i < kAxes.size(); ++i)
    if (const AxisName name = AxisName::at(i); axes.contains(name) && axis(name).size > 1)
      divided = divided | AxisSet{name};
  return divided;
}

Mesh make_mesh(int world_rank, const std::vector<AxisSize>& given) {
  std::array<int, kAxes.size()> sizes;
  sizes.fill(1);
  for (const AxisSize& size : given) sizes[size.axis.index()] = size.size;
  Mesh mesh{.grid = {}, .world_rank = world_rank};
  int64_t ranks = 1;
  for (size_t i = 0; i < kAxes.size(); ++i) {
    TRI_REQUIRE(sizes[i] > 0, "axis {} of {} ranks", kAxes[i].name, sizes[i]);
    ranks *= sizes[i];
    if (sizes[i] > 1 || kAxes[i].always_named) mesh.grid.axes.push_back({std::string(kAxes[i].name), sizes[i]});
  }
  TRI_REQUIRE(world_rank >= 0 && world_rank < ranks, "rank {} outside {}", world_rank, mesh.grid.sizes());
  return mesh;
}

}  // namespace tri
