// Messages between the hosts of a job: what its ranks exchange at set-up and in reports, and what is needed to connect
// a group before it can communicate by itself. A failure of MPI throws Fatal (kComm).
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <type_traits>
#include <vector>

#include "lib/comm/host/messages.h"

namespace tri {

// The neighbours of member `member` of `size` in a binomial tree: the member it receives from (-1: it is the first),
// and those it sends to, in order.
struct TreeNeighbours {
  int parent = -1;
  std::vector<int> children;
};
TreeNeighbours binomial_neighbours(int member, int size);
// The same in world ranks: the neighbours of `world_rank` in the tree of `world_ranks`, which contains it.
TreeNeighbours neighbours_of(int world_rank, const std::vector<int>& world_ranks);

// Broadcasts the first member's `data` (`bytes`) to all members of `world_ranks` by point-to-point messages along a
// binomial tree. Called only by the members, each of which must be in the list; no communicator is created, and other
// ranks take no part. `tag` distinguishes groups of the same ranks.
void broadcast_to_members(void* data, size_t bytes, const std::vector<int>& world_ranks, int tag);

// Collective over all ranks of the job. MPI counts are ints, so messages travel in rounds of at most `bytes_a_round`
// bytes over all ranks, which must be at least the number of ranks. Waits sleep.
constexpr int64_t kBytesARound = int64_t{1} << 30;
// Returns rank 0's bytes on all ranks.
std::string broadcast_bytes(std::string bytes, int64_t bytes_a_round = kBytesARound);
// Returns every rank's bytes, by world rank, on rank 0 (empty elsewhere) or on all ranks.
enum class Receivers { kRank0, kAll };
std::vector<std::string> collect_bytes(const std::string& mine, Receivers receivers,
                                       int64_t bytes_a_round = kBytesARound);

// Returns every member's bytes on all members of a small group, in the order of `world_ranks`: one message per pair.
// Waits sleep. Calls by groups of the same ranks must come in the same order.
std::vector<std::string> gather_among_members(const std::string& text, const std::vector<int>& world_ranks);
// The same for any other type that can be sent (messages.h).
template <class T>
requires(!std::is_convertible_v<T, std::string>) std::vector<T> gather_among_members(
    const T& mine, const std::vector<int>& world_ranks) {
  std::vector<T> values;
  for (const std::string& bytes : gather_among_members(to_bytes(mine), world_ranks))
    values.push_back(from_bytes<T>(bytes));
  return values;
}

}  // namespace tri
