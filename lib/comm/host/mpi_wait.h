// Waits for other ranks that poll and sleep in between. MPI's own waits spin, or yield at best: while one rank takes
// long, for example for its storage, they would leave no processor time for the threads that work or watch.
#pragma once

#include <mpi.h>

#include <vector>

namespace tri {

// Return once the request, or all of them, are complete. Throw Fatal (kComm) if MPI reports an error, here and below.
void wait_sleeping(MPI_Request& request);
void wait_sleeping(std::vector<MPI_Request>& requests);

// Returns once all ranks of the job have called it. A collective MPI call that follows finds all ranks present and does
// not spin for long. Collective.
void await_all_ranks();
// The same for `world_ranks`, by messages along a binomial tree, to its root and back. Collective over these ranks;
// ranks that share several groups call it for them in the same order.
void await_members(const std::vector<int>& world_ranks);

}  // namespace tri
