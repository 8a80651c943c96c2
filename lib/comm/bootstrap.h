// Bytes between the hosts of a job: what its ranks tell each other at set-up and in reports, and what brings up a group
// before it can communicate by itself.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <type_traits>
#include <vector>

#include "lib/comm/messages.h"

namespace tri {

// Whom member `member` of `size` hears from (-1: it is the first) and whom it tells, in order, in a binomial tree.
struct TreeNeighbours {
  int parent = -1;
  std::vector<int> children;
};
TreeNeighbours binomial_neighbours(int member, int size);
// The same in world ranks: those of `world_rank`, which is one of `world_ranks`, in the tree of these.
TreeNeighbours neighbours_of(int world_rank, const std::vector<int>& world_ranks);

// The first member's `data` (`bytes`), on all members of `world_ranks`: a binomial tree of point-to-point messages, one
// a receiving member, log2 of the members deep. Called by the members only, each of which finds itself in the list; no
// communicator is made and nobody else takes part. `tag` tells apart groups of the same ranks.
void broadcast_to_members(void* data, size_t bytes, const std::vector<int>& world_ranks, int tag);

// Over all ranks of the job, collective. Counts of MPI are ints, so messages travel in rounds of at most
// `bytes_a_round` (over all ranks together), which must be at least the number of ranks. Waits for others sleep.
constexpr int64_t kBytesARound = int64_t{1} << 30;
// Rank 0's bytes, on all ranks.
std::string broadcast_bytes(std::string bytes, int64_t bytes_a_round = kBytesARound);
// Every rank's bytes, by world rank, on rank 0 (empty elsewhere) or on all.
enum class Receivers { kRank0, kAll };
std::vector<std::string> collect_bytes(const std::string& mine, Receivers receivers,
                                       int64_t bytes_a_round = kBytesARound);

// Every member's bytes, on all members of a small group, in the order of `world_ranks`: a message a pair. Waits without
// spinning. Groups of the same ranks take their turns.
std::vector<std::string> gather_among_members(const std::string& text, const std::vector<int>& world_ranks);
// The same of any other type that can be sent (messages.h).
template <class T>
requires(!std::is_convertible_v<T, std::string>) std::vector<T> gather_among_members(
    const T& mine, const std::vector<int>& world_ranks) {
  std::vector<T> values;
  for (const std::string& bytes : gather_among_members(to_bytes(mine), world_ranks))
    values.push_back(from_bytes<T>(bytes));
  return values;
}

}  // namespace tri
