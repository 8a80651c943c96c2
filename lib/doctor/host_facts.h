// What a node says of itself in /proc and /sys. Nothing here measures.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace tri {

// The first line of a file without its end; "" where there is none.
std::string first_line(const std::string& path);
std::string whole_text(const std::string& path);

// What MPI communicates by, from /proc/self/maps: the components of Open MPI that stayed loaded after it had chosen.
// "pml ob1; btl self, vader", "pml ucx; UCX ib, cma"; "" where they are not to be seen (built into one library).
std::string transports_of(std::string_view maps);

// Bytes that MemAvailable of /proc/meminfo gives.
std::optional<int64_t> available_bytes(std::string_view meminfo);
// What the limit of this process's container leaves of `available`, its page cache not counted as used; the same where
// there is no limit. `root`: "/".
int64_t within_container(int64_t available, const std::string& root);

struct NetworkLink {
  std::string name;  // "mlx5_0 port 1", "eth0"
  bool up = false;
  std::optional<double> gigabits;  // a second, negotiated
  std::optional<double> errors;    // times down, symbol and receive errors
  std::optional<int> pcie_lanes, most_pcie_lanes;
};
std::vector<NetworkLink> infiniband_ports(const std::string& root);
// Physical interfaces alone: those with a device behind them.
std::vector<NetworkLink> network_interfaces(const std::string& root);

// NUMA nodes that have memory, by number.
std::vector<int> numa_nodes(const std::string& root);
// The list of /sys/.../online: "0-1,4".
std::vector<int> numbers_of_list(std::string_view list);

// CPU model and its instructions: machines of one kind compute the same bits.
std::string cpu_kind(std::string_view cpuinfo);

}  // namespace tri
