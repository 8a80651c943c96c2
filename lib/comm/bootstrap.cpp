#include "lib/comm/bootstrap.h"

#include <mpi.h>

#include <algorithm>
#include <chrono>
#include <thread>

#include "lib/comm/mpi_check.h"

namespace tri {

TreeNeighbours binomial_neighbours(int member, int size) {
  // Member m hears from m without its highest bit, and tells m + 2^k for every 2^k above m.
  TreeNeighbours tree;
  int step = 1;
  for (; step <= member; step *= 2) {
  }
  if (member > 0) tree.parent = member - step / 2;
  for (; member + step < size; step *= 2) tree.children.push_back(member + step);
  return tree;
}

void broadcast_to_members(void* data, size_t bytes, const std::vector<int>& world_ranks, int tag) {
  int world_rank = 0;
  TRI_MPI(MPI_Comm_rank(MPI_COMM_WORLD, &world_rank));
  const auto self = std::find(world_ranks.begin(), world_ranks.end(), world_rank);
  TRI_REQUIRE(self != world_ranks.end(), "world rank {} is no member of this group", world_rank);
  const TreeNeighbours tree =
      binomial_neighbours(static_cast<int>(self - world_ranks.begin()), static_cast<int>(world_ranks.size()));
  const int count = static_cast<int>(bytes);
  const auto rank_of = [&](int member) { return world_ranks[static_cast<size_t>(member)]; };
  if (tree.parent >= 0)
    TRI_MPI(MPI_Recv(data, count, MPI_BYTE, rank_of(tree.parent), tag, MPI_COMM_WORLD, MPI_STATUS_IGNORE));
  for (const int child : tree.children) TRI_MPI(MPI_Send(data, count, MPI_BYTE, rank_of(child), tag, MPI_COMM_WORLD));
}

std::vector<std::string> gather_among_members(const std::string& text, const std::vector<int>& world_ranks) {
  constexpr int kTag = 30000;  // not one of a group
  int world_rank = 0;
  TRI_MPI(MPI_Comm_rank(MPI_COMM_WORLD, &world_rank));
  std::vector<MPI_Request> sends;
  for (const int peer : world_ranks)
    if (peer != world_rank)
      TRI_MPI(MPI_Isend(text.data(), static_cast<int>(text.size()), MPI_BYTE, peer, kTag, MPI_COMM_WORLD,
                        &sends.emplace_back()));
  std::vector<std::string> texts;
  for (const int peer : world_ranks) {
    if (peer == world_rank) {
      texts.push_back(text);
      continue;
    }
    MPI_Status status;
    for (int found = 0; !found;) {
      TRI_MPI(MPI_Iprobe(peer, kTag, MPI_COMM_WORLD, &found, &status));
      if (!found) std::this_thread::sleep_for(std::chrono::microseconds(100));
    }
    int size = 0;
    TRI_MPI(MPI_Get_count(&status, MPI_BYTE, &size));
    std::string& received = texts.emplace_back(static_cast<size_t>(size), '\0');
    TRI_MPI(MPI_Recv(received.data(), size, MPI_BYTE, peer, kTag, MPI_COMM_WORLD, MPI_STATUS_IGNORE));
  }
  TRI_MPI(MPI_Waitall(static_cast<int>(sends.size()), sends.data(), MPI_STATUSES_IGNORE));
  return texts;
}

}  // namespace tri
