#include "lib/parallel/mesh.h"

#include "io/base/error.h"

namespace tri {
namespace {

constexpr AxisSet kStageAxes = AxisSet::outside({"pp"});  // of which kExpertAxes are made

std::vector<AxisName> axes_of(AxisSet axes) {
  std::vector<AxisName> all;
  for (size_t i = 0; i < kNumAxisNames; ++i)
    if (axes.contains(AxisName::at(i))) all.push_back(AxisName::at(i));
  return all;
}

std::vector<std::string_view> names_of(AxisSet axes) {
  std::vector<std::string_view> names;
  for (const AxisName axis : axes_of(axes)) names.push_back(axis.text());
  return names;
}

}  // namespace

std::string to_string(AxisSet axes) {
  std::string text;
  for (const std::string_view name : names_of(axes)) text += fmt::format("{}{}", text.empty() ? "" : ", ", name);
  return "{" + text + "}";
}

Axis Mesh::axis(AxisName name) const {
  if (!name.is_expert())
    return {grid.rank_on(name.text(), world_rank), grid.size(name.text()), folded && name == AxisName("pp")};
  const Axis stage = joint_axis(kStageAxes);
  if (name == AxisName("ep")) return {stage.rank % ep, ep};
  return {stage.rank / ep, stage.size / ep};
}

Axis Mesh::joint_axis(AxisSet axes) const {
  Axis joint;
  for (const AxisName name : axes_of(axes)) {
    const Axis one = axis(name);
    joint.rank += joint.size * one.rank;
    joint.size *= one.size;
  }
  return joint;
}

std::vector<int> Mesh::group(AxisSet axes) const {
  if (!axes.has_expert_axes()) return grid.group(world_rank, names_of(axes));
  TRI_REQUIRE((axes - kRowAxes).empty(), "a group along {}", to_string(axes));
  std::vector<int> members;
  for (const int rank : grid.group(world_rank, names_of(kStageAxes))) {
    const Mesh other = seen_from(rank);
    const bool same_ep = other.axis("ep").rank == axis("ep").rank,
               same_edp = other.axis("edp").rank == axis("edp").rank;
    if ((same_ep || axes.contains("ep")) && (same_edp || axes.contains("edp"))) members.push_back(rank);
  }
  return members;
}

Axis Mesh::holders(AxisSet axes) const {
  TRI_REQUIRE(axes.contains("pp"), "the holders of what is divided over {}", to_string(axes));
  if (!axes.has_expert_axes()) return joint_axis(AxisSet::outside(axes));
  TRI_REQUIRE((axes - AxisSet{"pp"} - kRowAxes).empty(), "the holders of what is divided over {}", to_string(axes));
  return joint_axis(kRowAxes - axes);
}

Mesh Mesh::moved(AxisName axis, int rank) const { return seen_from(grid.moved(world_rank, axis.text(), rank)); }

AxisSet Mesh::divided(AxisSet axes) const {
  AxisSet divided;
  for (const AxisName name : axes_of(axes))
    if (axis(name).size > 1) divided = divided | AxisSet{name};
  return divided;
}

Mesh make_mesh(int world_rank, const std::vector<AxisSize>& given) {
  std::array<int, kAxes.size()> sizes;
  sizes.fill(1);
  Mesh mesh{.grid = {}, .world_rank = world_rank};
  for (const AxisSize& size : given) {
    TRI_REQUIRE(!size.axis.is_expert() || size.axis == AxisName("ep"), "axis {} is made of others", size.axis.text());
    (size.axis.is_expert() ? mesh.ep : sizes[size.axis.index()]) = size.size;
  }
  int64_t ranks = 1;
  for (size_t i = 0; i < kAxes.size(); ++i) {
    TRI_REQUIRE(sizes[i] > 0, "axis {} of {} ranks", kAxes[i].name, sizes[i]);
    ranks *= sizes[i];
    if (sizes[i] > 1 || kAxes[i].always_named) mesh.grid.axes.push_back({std::string(kAxes[i].name), sizes[i]});
  }
  TRI_REQUIRE(world_rank >= 0 && world_rank < ranks, "rank {} outside {}", world_rank, mesh.grid.sizes());
  TRI_REQUIRE(mesh.ep > 0 && mesh.joint_axis(kStageAxes).size % mesh.ep == 0, "ep {} of {} ranks of a stage", mesh.ep,
              mesh.joint_axis(kStageAxes).size);
  return mesh;
}

}  // namespace tri
