#include "io/ranks/rank_times.h"

#include <fmt/format.h>

namespace tri {

std::string to_string_place(const RankMesh& mesh, int world_rank) {
  const auto rank = static_cast<size_t>(world_rank);
  const RankMesh::Place place = rank < mesh.places.size() ? mesh.places[rank] : RankMesh::Place{};
  return fmt::format("rank {} [{}]{}{}", world_rank, mesh.grid.place(world_rank),
                     place.host.empty() ? "" : " on " + place.host,
                     place.gpu.empty() ? "" : fmt::format(" (GPU {})", place.gpu));
}

}  // namespace tri
