// Waiting for other ranks by looks, with sleep in between. MPI's own waits spin, or yield at best: while one rank takes
// long, for its storage say, the cores of all others would have nothing left for the threads that work or watch.
#pragma once

#include <mpi.h>

#include <vector>

namespace tri {

// Return once the request, or all of them, are done. Fatal(kComm) where MPI reports an error, here and below.
void wait_sleeping(MPI_Request& request);
void wait_sleeping(std::vector<MPI_Request>& requests);

// Collective: returns once all ranks of the job have called it. A collective call of MPI's that follows finds everybody
// there, and does not spin for long.
void await_all_ranks();
// The same of `world_ranks`, called by these alone: messages along a binomial tree, to its root and back. Groups that
// share ranks are met in the same order on all of them.
void await_members(const std::vector<int>& world_ranks);

}  // namespace tri
