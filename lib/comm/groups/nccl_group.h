// NCCL communicators, bootstrapped through MPI. CMake selects the file that defines this: nccl_group.cpp, or
// no_nccl.cpp in a build without CUDA.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "lib/comm/groups/comm_group.h"

namespace tri {

// Collective over the members, in the same order as their other groups of the same ranks. `tag` and `connect_seconds`
// are as in Job::make_group.
std::unique_ptr<CommGroup> make_nccl_group(const std::string& name, const std::vector<int>& world_ranks, int world_rank,
                                           int tag, Device& device, double connect_seconds);

// Returns a group that uses the communicator of `other`, a group made here. Both are used from one stream, in the same
// order on all members.
std::unique_ptr<CommGroup> share_nccl_group(const std::string& name, const CommGroup& other);

}  // namespace tri
