// CommGroup over NCCL, for the CUDA backend. Internal to lib/comm. The file that defines it is picked by
// CMake: nccl_group.cpp, or no_nccl.cpp.
#pragma once

#include <mpi.h>

#include "lib/comm/comm_group.h"

namespace tri {

// The members of `comm` as an NCCL communicator: the unique id goes over `comm`, which is freed. Collective
// over `comm` alone.
std::unique_ptr<CommGroup> make_nccl_group(const std::string& name, MPI_Comm comm, Device& device);

}  // namespace tri
