#include "lib/comm/host/bootstrap.h"

#include <mpi.h>

#include <algorithm>
#include <chrono>
#include <numeric>
#include <thread>

#include "lib/comm/host/host_traffic.h"
#include "lib/comm/host/mpi_check.h"
#include "lib/comm/host/mpi_wait.h"

namespace tri {

TreeNeighbours binomial_neighbours(int member, int size) {
  // Member m receives from m without its highest bit, and sends to m + 2^k for every 2^k above m.
  TreeNeighbours tree;
  int step = 1;
  for (; step <= member; step *= 2) {
  }
  if (member > 0) tree.parent = member - step / 2;
  for (; member + step < size; step *= 2) tree.children.push_back(member + step);
  return tree;
}

TreeNeighbours neighbours_of(int world_rank, const std::vector<int>& world_ranks) {
  const auto self = std::find(world_ranks.begin(), world_ranks.end(), world_rank);
  TRI_REQUIRE(self != world_ranks.end(), "world rank {} is not a member of this group", world_rank);
  TreeNeighbours tree =
      binomial_neighbours(static_cast<int>(self - world_ranks.begin()), static_cast<int>(world_ranks.size()));
  const auto rank_of = [&](int member) { return world_ranks[static_cast<size_t>(member)]; };
  if (tree.parent >= 0) tree.parent = rank_of(tree.parent);
  std::transform(tree.children.begin(), tree.children.end(), tree.children.begin(), rank_of);
  return tree;
}

void broadcast_to_members(void* data, size_t bytes, const std::vector<int>& world_ranks, int tag) {
  int world_rank = 0;
  TRI_MPI(MPI_Comm_rank(MPI_COMM_WORLD, &world_rank));
  const TreeNeighbours tree = neighbours_of(world_rank, world_ranks);
  const int count = static_cast<int>(bytes);
  if (tree.parent >= 0) {
    MPI_Request request;
    TRI_MPI(MPI_Irecv(data, count, MPI_BYTE, tree.parent, tag, MPI_COMM_WORLD, &request));
    wait_sleeping(request);
  }
  count_host_messages(std::ssize(tree.children), static_cast<int64_t>(bytes));
  for (const int child : tree.children) TRI_MPI(MPI_Send(data, count, MPI_BYTE, child, tag, MPI_COMM_WORLD));
}

std::string broadcast_bytes(std::string bytes, int64_t bytes_a_round) {
  auto size = static_cast<int64_t>(bytes.size());
  await_all_ranks();
  TRI_MPI(MPI_Bcast(&size, 1, MPI_INT64_T, 0, MPI_COMM_WORLD));
  bytes.resize(static_cast<size_t>(size));
  count_host_call(size);
  for (int64_t at = 0; at < size; at += bytes_a_round)
    TRI_MPI(MPI_Bcast(bytes.data() + at, static_cast<int>(std::min(bytes_a_round, size - at)), MPI_BYTE, 0,
                      MPI_COMM_WORLD));
  return bytes;
}

std::vector<std::string> collect_bytes(const std::string& mine, Receivers receivers, int64_t bytes_a_round) {
  int world_rank = 0, world_size = 1;
  TRI_MPI(MPI_Comm_rank(MPI_COMM_WORLD, &world_rank));
  TRI_MPI(MPI_Comm_size(MPI_COMM_WORLD, &world_size));
  const auto size = static_cast<int64_t>(mine.size());
  std::vector<int64_t> sizes(static_cast<size_t>(world_size));
  await_all_ranks();
  TRI_MPI(MPI_Allgather(&size, 1, MPI_INT64_T, sizes.data(), 1, MPI_INT64_T, MPI_COMM_WORLD));
  const bool receives = receivers == Receivers::kAll || world_rank == 0;
  count_host_call(receives ? std::accumulate(sizes.begin(), sizes.end(), int64_t{0}) : 0);
  const int64_t longest = *std::max_element(sizes.begin(), sizes.end());
  const int64_t most = std::max<int64_t>(1, bytes_a_round / world_size);
  std::vector<std::string> messages(receives ? sizes.size() : 0);
  std::vector<int> counts(sizes.size()), offsets(sizes.size());
  for (int64_t at = 0; at < longest; at += most) {
    const auto part_of = [&](int64_t bytes) { return static_cast<int>(std::clamp<int64_t>(bytes - at, 0, most)); };
    int total = 0;
    for (size_t rank = 0; rank < sizes.size(); ++rank) {
      offsets[rank] = total;
      total += counts[rank] = part_of(sizes[rank]);
    }
    std::string all(receives ? static_cast<size_t>(total) : 0, '\0');
    const char* part = mine.data() + std::min(at, size);
    if (receivers == Receivers::kAll)
      TRI_MPI(MPI_Allgatherv(part, part_of(size), MPI_BYTE, all.data(), counts.data(), offsets.data(), MPI_BYTE,
                             MPI_COMM_WORLD));
    else
      TRI_MPI(MPI_Gatherv(part, part_of(size), MPI_BYTE, all.data(), counts.data(), offsets.data(), MPI_BYTE, 0,
                          MPI_COMM_WORLD));
    for (size_t rank = 0; rank < messages.size(); ++rank)
      messages[rank].append(all, static_cast<size_t>(offsets[rank]), static_cast<size_t>(counts[rank]));
  }
  return messages;
}

std::vector<std::string> gather_among_members(const std::string& text, const std::vector<int>& world_ranks) {
  constexpr int kTag = 30000;  // distinct from those of groups
  int world_rank = 0;
  TRI_MPI(MPI_Comm_rank(MPI_COMM_WORLD, &world_rank));
  std::vector<MPI_Request> sends;
  count_host_messages(std::ssize(world_ranks) - 1, std::ssize(text));
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
  wait_sleeping(sends);
  return texts;
}

}  // namespace tri
