// NCCL communicators, bootstrapped through MPI. The file that defines this is picked by CMake: nccl_group.cpp, or
// no_nccl.cpp in a build without CUDA.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "lib/comm/comm_group.h"

namespace tri {

// Called by the members only, in the same order as their other groups with the same ranks. `tag`: as in
// Job::make_group, as `connect_seconds`.
std::unique_ptr<CommGroup> make_nccl_group(const std::string& name, const std::vector<int>& world_ranks, int world_rank,
                                           int tag, Device& device, double connect_seconds);

}  // namespace tri
