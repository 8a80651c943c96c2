#include "lib/config/axis_fields.h"

#include <algorithm>

namespace tri {

Mesh mesh_of(const Config& config, int world_rank) {
  std::vector<AxisSize> sizes;
  for (const AxisField& field : kAxisFields) sizes.push_back({field.axis, config.parallel.*field.size});
  sizes.push_back({"ep", config.parallel.ep});
  Mesh mesh = make_mesh(world_rank, sizes);
  mesh.folded = folds(config.parallel.schedule);
  return mesh;
}

int64_t ranks_along(AxisSet axes, const ParallelConfig& parallel) {
  int64_t ranks = 1;
  for (const AxisField& field : kAxisFields)
    if (axes.contains(field.axis)) ranks = std::min<int64_t>(ranks, int64_t{kMostRanks} + 1) * (parallel.*field.size);
  return ranks;
}

std::vector<AxisSize> named_axes(const ParallelConfig& parallel) {
  std::vector<AxisSize> named;
  for (const auto& [axis, size] : kAxisFields)
    if (parallel.*size != 1 || kAxes[axis.index()].always_named) named.push_back({axis, parallel.*size});
  return named;
}

std::string sizes_along(AxisSet axes, const ParallelConfig& parallel) {
  std::string text;
  for (const auto& [axis, size] : named_axes(parallel))
    if (axes.contains(axis)) text += fmt::format("{}{} {}", text.empty() ? "" : " x ", axis.text(), size);
  return text;
}

}  // namespace tri
