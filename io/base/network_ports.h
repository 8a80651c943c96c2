// The node's network ports, from /sys: Ethernet cards with a device, and InfiniBand ports. No function measures or
// waits for a device.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace tri {

struct NetworkPort {
  std::string card;                // "eth0", "mlx5_0"
  std::string port;                // of an InfiniBand card: "1"; "" for Ethernet
  std::string state;               // "up", "down", "unknown"; of InfiniBand "4: ACTIVE", "1: DOWN"
  std::optional<double> rate;      // from the driver: Mbit/s of Ethernet, Gbit/s of InfiniBand
  int64_t carrier_changes = 0;     // one flap counts as two
  int64_t received = 0, sent = 0;  // bytes since the driver was loaded, including RDMA over Ethernet
  // Line errors since the driver was loaded; for Ethernet only receive and transmit errors.
  int64_t receive_errors = 0, transmit_errors = 0, symbol_errors = 0, integrity_errors = 0, link_downed = 0;
  std::optional<int> pcie_lanes, most_pcie_lanes;  // absent: the card is not on PCIe, or asleep

  bool is_infiniband() const { return !port.empty(); }
  bool is_active() const { return is_infiniband() ? state.starts_with("4:") : state == "up"; }
};

// Returns the ports by card and port. `sys`: "/sys".
std::vector<NetworkPort> network_ports(const std::string& sys);

// Returns the number at the start of a file's first line: "400 Gb/sec (4X NDR)". nullopt: there is none.
std::optional<double> number_in(const std::string& path);

}  // namespace tri
