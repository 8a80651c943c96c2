// The exchange that brings up a group before it can communicate by itself.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

namespace tri {

// Whom member `member` of `size` hears from (-1: it is the first) and whom it tells, in order, in a binomial tree.
struct TreeNeighbours {
  int parent = -1;
  std::vector<int> children;
};
TreeNeighbours binomial_neighbours(int member, int size);

// The first member's `data` (`bytes`), on all members of `world_ranks`: a binomial tree of point-to-point messages, one
// a receiving member, log2 of the members deep. Called by the members only, each of which finds itself in the list; no
// communicator is made and nobody else takes part. `tag` tells apart groups of the same ranks.
void broadcast_to_members(void* data, size_t bytes, const std::vector<int>& world_ranks, int tag);

// Every member's text, on all members of a small group, in the order of `world_ranks`: a message a pair. Waits without
// spinning. Groups of the same ranks take their turns.
std::vector<std::string> gather_among_members(const std::string& text, const std::vector<int>& world_ranks);

}  // namespace tri
