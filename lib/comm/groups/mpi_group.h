// CommGroup over MPI, for the CPU backend. Internal to lib/comm.
#pragma once

#include <mpi.h>

#include "lib/comm/groups/comm_group.h"

namespace tri {

// Takes ownership of `comm`. Collective over its members; throws Fatal (kComm).
std::unique_ptr<CommGroup> make_mpi_group(const std::string& name, MPI_Comm comm, Device& device);

}  // namespace tri
