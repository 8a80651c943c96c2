#include "lib/parallel/mesh.h"

#include "io/base/error.h"

namespace tri {

Mesh make_mesh(int world_rank, int tp, int dp, int pp) {
  TRI_REQUIRE(tp > 0 && dp > 0 && pp > 0 && world_rank >= 0 && world_rank < tp * dp * pp,
              "rank {} outside tp {} x dp {} x pp {}", world_rank, tp, dp, pp);
  return {.tp = {world_rank % tp, tp},
          .dp = {world_rank / tp % dp, dp},
          .pp = {world_rank / (tp * dp), pp},
          .world_rank = world_rank};
}

std::string Mesh::place() const { return fmt::format("pp{} dp{} tp{}", pp.rank, dp.rank, tp.rank); }

}  // namespace tri
