// Ports of a node, from a /sys created by the test.
#include "io/base/network_ports.h"

#include <gtest/gtest.h>

#include "io/nvml/nvml.h"
#include "tests/io/temporary_folder.h"

namespace tri {
namespace {

TEST(NetworkPorts, of_infiniband_have_rates_errors_and_lanes) {
  const TemporaryFolder folder;
  const std::string sys = folder / "sys", cards = sys + "/class/infiniband/";
  EXPECT_TRUE(network_ports(sys).empty());
  put(cards + "mlx5_0/ports/1/state", "4: ACTIVE");
  put(cards + "mlx5_0/ports/1/rate", "400 Gb/sec (4X NDR)");
  put(cards + "mlx5_0/ports/1/counters/link_downed", "3");
  put(cards + "mlx5_0/ports/1/counters/symbol_error", "4");
  put(cards + "mlx5_0/ports/1/counters/port_rcv_errors", "5");
  put(cards + "mlx5_0/ports/1/counters/local_link_integrity_errors", "6");
  put(cards + "mlx5_0/ports/1/counters/port_rcv_data", "7");
  put(cards + "mlx5_0/device/current_link_width", "8");
  put(cards + "mlx5_0/device/max_link_width", "16");
  put(cards + "mlx5_1/ports/1/state", "1: DOWN");
  put(cards + "mlx5_1/device/current_link_width", "255");
  const auto ports = network_ports(sys);
  ASSERT_EQ(ports.size(), 2u);
  EXPECT_EQ(ports[0].card, "mlx5_0");
  EXPECT_EQ(ports[0].port, "1");
  EXPECT_TRUE(ports[0].is_infiniband() && ports[0].is_active());
  EXPECT_EQ(ports[0].rate, 400);
  EXPECT_EQ(ports[0].link_downed, 3);
  EXPECT_EQ(ports[0].symbol_errors, 4);
  EXPECT_EQ(ports[0].receive_errors, 5);
  EXPECT_EQ(ports[0].integrity_errors, 6);
  EXPECT_EQ(ports[0].received, 28) << "words of four bytes";
  EXPECT_EQ(ports[0].pcie_lanes, 8);
  EXPECT_EQ(ports[0].most_pcie_lanes, 16);
  EXPECT_FALSE(ports[1].is_active());
  EXPECT_EQ(ports[1].rate, std::nullopt);
  EXPECT_EQ(ports[1].pcie_lanes, std::nullopt);
}

TEST(NetworkPorts, of_ethernet_are_those_with_a_card) {
  const TemporaryFolder folder;
  const std::string sys = folder / "sys", cards = sys + "/class/net/";
  put(cards + "lo/operstate", "unknown");
  put(cards + "eth0/operstate", "up");
  put(cards + "eth0/speed", "25000");
  put(cards + "eth0/device/max_link_width", "8");
  put(cards + "eth1/operstate", "down");
  put(cards + "eth1/speed", "-1");
  put(cards + "eth1/device/vendor", "0x1af4");
  const auto ports = network_ports(sys);
  ASSERT_EQ(ports.size(), 2u);
  EXPECT_EQ(ports[0].card, "eth0");
  EXPECT_FALSE(ports[0].is_infiniband());
  EXPECT_TRUE(ports[0].is_active());
  EXPECT_EQ(ports[0].rate, 25000);
  EXPECT_EQ(ports[0].most_pcie_lanes, 8);
  EXPECT_FALSE(ports[1].is_active());
  EXPECT_EQ(ports[1].rate, -1);
}

TEST(NetworkPorts, counters_keep_all_of_their_64_bits) {
  const TemporaryFolder folder;
  const std::string sys = folder / "sys", net = sys + "/class/net/eth0/",
                    ib = sys + "/class/infiniband/mlx5_0/ports/1/";
  put(net + "device/vendor", "0x15b3");
  put(net + "statistics/rx_bytes", "18446744073709551614");
  put(net + "statistics/tx_bytes", "9007199254740993");  // not representable as a double
  put(net + "statistics/rx_errors", "18446744073709551615");
  put(net + "statistics/tx_errors", "3");
  put(ib + "counters/port_rcv_data", "18446744073709551615");
  put(ib + "counters/port_xmit_data", "4611686018427387905");
  const auto ports = network_ports(sys);
  ASSERT_EQ(ports.size(), 2u);
  EXPECT_EQ(ports[0].received, NetworkPort::kUnreadable - 1);
  EXPECT_EQ(ports[0].sent, 9007199254740993u);
  EXPECT_EQ(ports[0].errors(), NetworkPort::kUnreadable) << "receive errors are not known";
  EXPECT_EQ(ports[1].received, NetworkPort::kUnreadable);
  EXPECT_EQ(ports[1].sent, 4u) << "words of four bytes, modulo 2^64";
}

TEST(BusIds, are_written_as_the_kernel_does) {
  EXPECT_EQ(short_bus_id("00000000:18:00.0"), "0000:18:00.0");
  EXPECT_EQ(short_bus_id("0000:1A:00.0"), "0000:1a:00.0");
  EXPECT_EQ(short_bus_id("00010000:18:00.0"), "00010000:18:00.0") << "a domain that needs more digits";
  EXPECT_EQ(short_bus_id(""), "");
}

}  // namespace
}  // namespace tri
