// Facts about a node from /proc and /sys, without measurements.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace tri {

// Returns MPI's transports from /proc/self/maps: the components of Open MPI that remained loaded after its choice. "pml
// ob1; btl self, vader", "pml ucx; UCX ib, cma"; "" if they are not visible (built into one library).
std::string transports_of(std::string_view maps);

// Returns how much of `available` the limit of this process's container allows, without counting its page cache as
// used; `available` if there is no limit. `root`: "/".
int64_t within_container(int64_t available, const std::string& root);

// Returns the numbers of the NUMA nodes that have memory.
std::vector<int> numa_nodes(const std::string& root);
// Parses a list as in /sys/.../online: "0-1,4".
std::vector<int> numbers_of_list(std::string_view list);

// Returns the CPU's model and instructions: machines of one kind compute the same bits.
std::string cpu_kind(std::string_view cpuinfo);

}  // namespace tri
