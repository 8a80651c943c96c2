// The node's network ports, from /sys: Ethernet cards with a device, and InfiniBand ports. No function measures or
// waits for a device.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace tri {

struct NetworkPort {
  static constexpr uint64_t kUnreadable = ~uint64_t{0};

  std::string card;            // "eth0", "mlx5_0"
  std::string port;            // of an InfiniBand card: "1"; "" for Ethernet
  std::string state;           // "up", "down", "unknown"; of InfiniBand "4: ACTIVE", "1: DOWN"
  std::optional<double> rate;  // as the driver gives it: Mbit/s of Ethernet, Gbit/s of InfiniBand
  // Counters, modulo 2^64; kUnreadable where the driver cannot read one.
  uint64_t carrier_changes = 0;     // down and up again are two
  uint64_t received = 0, sent = 0;  // bytes since the driver was loaded, RDMA over Ethernet included
  // Errors of the line since the driver was loaded; of Ethernet receive and transmit errors alone.
  uint64_t receive_errors = 0, transmit_errors = 0, symbol_errors = 0, integrity_errors = 0, link_downed = 0;
  std::optional<int> pcie_lanes, most_pcie_lanes;  // absent: the card is not on PCIe, or asleep

  uint64_t errors() const;  // of both directions and of symbols
  bool is_infiniband() const { return !port.empty(); }
  bool is_active() const { return is_infiniband() ? state.starts_with("4:") : state == "up"; }
};

// Returns the ports by card and port. `sys`: "/sys".
std::vector<NetworkPort> network_ports(const std::string& sys);

// Returns the number at the start of a file's first line: "400 Gb/sec (4X NDR)". nullopt: there is none.
std::optional<double> number_in(const std::string& path);

}  // namespace tri
