// What a node says of itself in /proc and /sys. Nothing here measures.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace tri {

// What MPI communicates by, from /proc/self/maps: the components of Open MPI that stayed loaded after it had chosen.
// "pml ob1; btl self, vader", "pml ucx; UCX ib, cma"; "" where they are not to be seen (built into one library).
std::string transports_of(std::string_view maps);

// What the limit of this process's container leaves of `available`, its page cache not counted as used; the same where
// there is no limit. `root`: "/".
int64_t within_container(int64_t available, const std::string& root);

// NUMA nodes that have memory, by number.
std::vector<int> numa_nodes(const std::string& root);
// The list of /sys/.../online: "0-1,4".
std::vector<int> numbers_of_list(std::string_view list);

// CPU model and its instructions: machines of one kind compute the same bits.
std::string cpu_kind(std::string_view cpuinfo);

}  // namespace tri
