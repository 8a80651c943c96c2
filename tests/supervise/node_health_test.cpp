// The state of a node's hardware: /sys and kernel messages from prepared folders and files, GPUs from a fake NVML.
#include "lib/supervise/node_health.h"

#include <gtest/gtest.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <thread>

#include "lib/supervise/node_processes.h"
#include "tests/io/temporary_folder.h"

namespace tri {
namespace {

TEST(Ports, of_cards_and_of_infiniband_with_their_counters) {
  const TemporaryFolder folder;
  const std::string sys = folder / "sys", net = sys + "/class/net/", ib = sys + "/class/infiniband/";
  EXPECT_TRUE(read_ports(sys).empty());
  put(net + "lo/operstate", "unknown");
  put(net + "eth0/device/vendor", "0x15b3");
  put(net + "eth0/operstate", "up");
  put(net + "eth0/carrier_changes", "3");
  put(net + "eth0/statistics/rx_bytes", "1000");
  put(net + "eth0/statistics/tx_bytes", "2000");
  put(net + "eth0/statistics/rx_errors", "1");
  put(net + "eth0/statistics/tx_errors", "2");
  put(net + "eth1/device/vendor", "0x15b3");
  put(net + "eth1/operstate", "down");
  put(ib + "mlx5_0/ports/1/state", "4: ACTIVE");
  put(ib + "mlx5_0/ports/1/counters/link_downed", "2");
  put(ib + "mlx5_0/ports/1/counters/port_rcv_data", "250");
  put(ib + "mlx5_0/ports/1/counters/port_xmit_data", "500");
  put(ib + "mlx5_0/ports/1/counters/symbol_error", "5");
  put(ib + "mlx5_0/ports/2/state", "1: DOWN");
  // RDMA over Ethernet: its bytes are in the card's counters, not in the kernel's statistics.
  put(net + "eth2/device/infiniband/mlx5_1/ports/1/counters/port_rcv_data", "25");
  put(net + "eth2/device/infiniband/mlx5_1/ports/1/counters/port_xmit_data", "50");
  put(net + "eth2/statistics/rx_bytes", "7");
  const auto all = read_ports(sys);
  ASSERT_EQ(all.size(), 5u);
  EXPECT_EQ(all[2].name, "eth2");
  EXPECT_EQ(std::pair(all[2].received, all[2].sent), std::pair(int64_t{107}, int64_t{200}));
  std::vector<PortSight> ports = all;
  ports.erase(ports.begin() + 2);
  const auto is = [](const PortSight& p, const char* name, bool up, int64_t changes, int64_t received, int64_t sent,
                     int64_t errors) {
    EXPECT_EQ(p.name, name);
    EXPECT_EQ(p.up, up) << name;
    EXPECT_EQ(std::tuple(p.changes, p.received, p.sent, p.errors), std::tuple(changes, received, sent, errors)) << name;
  };
  is(ports[0], "eth0", true, 3, 1000, 2000, 3);
  is(ports[1], "eth1", false, 0, 0, 0, 0);
  is(ports[2], "mlx5_0:1", true, 4, 1000, 2000, 5);
  is(ports[3], "mlx5_0:2", false, 0, 0, 0, 0);
}

TEST(KernelMessages, xids_name_gpu_and_number) {
  const KernelXid xid = kernel_xid("NVRM: Xid (PCI:0000:18:00): 79, pid='<unknown>', GPU has fallen off the bus.");
  EXPECT_EQ(xid.pci, "0000:18:00.0");
  EXPECT_EQ(xid.xid, 79);
  for (const char* line : {"", "NVRM: Xid", "NVRM: Xid (PCI:0000:18:00", "mlx5_core 0000:18:00.0: Link down"})
    EXPECT_EQ(kernel_xid(line).pci, "") << line;
}

TEST(KernelMessages, new_lines_are_read_once_and_none_where_they_may_not_be_read) {
  const TemporaryFolder folder;
  const std::string path = folder / "kmsg";
  std::ofstream(path) << "6,1,0,-;before the agent began\n";
  KernelLog log(path);
  EXPECT_TRUE(log.lines().empty());
  std::ofstream(path, std::ios::app) << "3,2,100,-;Out of memory: Killed process 7\n";
  EXPECT_EQ(log.lines(), std::vector<std::string>{"Out of memory: Killed process 7"});
  EXPECT_TRUE(log.lines().empty());
  EXPECT_TRUE(KernelLog(folder / "absent").lines().empty());
}

TEST(KernelMessages, keywords_are_those_of_faults) {
  for (const char* line : {"NVRM: Xid (PCI:0000:18:00): 79", "Out of memory: Killed process 7", "eth0: Link is Down",
                           "blk_update_request: I/O error", "NCCL WARN Call to connect failed"})
    EXPECT_TRUE(is_alarming(line)) << line;
  for (const char* line : {"", "step 100 loss 3.2", "eth0: Link is Up"}) EXPECT_FALSE(is_alarming(line)) << line;
}

class GpuWatchTest : public ::testing::Test {
 protected:
  void SetUp() override {
    ::setenv("TRIREME_NVML", TRI_FAKE_NVML, 1);
    ::setenv("TRIREME_TEST_NVML_FILE", words.c_str(), 1);
    say("");
  }
  void TearDown() override {
    ::unsetenv("TRIREME_NVML");
    ::unsetenv("TRIREME_TEST_NVML_FILE");
  }
  // Writes atomically: a concurrent reader sees either the old text or the new one.
  void say(const std::string& text) {
    std::ofstream(words + ".part") << text << "\n";
    std::filesystem::rename(words + ".part", words);
  }

  const TemporaryFolder folder;
  const std::string words = folder / "words";
};

TEST_F(GpuWatchTest, sees_each_fault_when_it_comes_and_on_its_gpu_alone) {
  GpuWatch watch;
  auto gpus = watch.look(0);
  ASSERT_EQ(gpus.size(), 2u);
  EXPECT_EQ(gpus[1].pci, "0000:11:00.0");
  EXPECT_EQ(gpus[1].nvlinks_up, 18);
  EXPECT_EQ(gpus[1].recovery_action, 0);
  EXPECT_TRUE(gpus[1].xids.empty() && !gpus[1].lost && !gpus[1].slowed);
  const GpuSight healthy = gpus[0];
  say("xid=1:13 ecc=1:2 recovery=1:1 slowdown=1:64 remap=1:2");
  gpus = watch.look(0);
  EXPECT_EQ(gpus[1].xids, std::vector<int>{13});
  EXPECT_EQ(gpus[1].ecc_errors, 2);
  EXPECT_EQ(gpus[1].recovery_action, 1);
  EXPECT_TRUE(gpus[1].slowed && gpus[1].remap_failed);
  EXPECT_EQ(to_bytes(gpus[0]), to_bytes(healthy));
  say("xid=1:13 xid=1:79 missing=1:0");
  gpus = watch.look(0);
  EXPECT_EQ(gpus[1].xids, (std::vector<int>{13, 79}));
  EXPECT_EQ(gpus[1].num_xids, 2);
  EXPECT_TRUE(gpus[1].lost);
  EXPECT_EQ(gpus[1].pci, "0000:11:00.0") << "it is known by the name that it had";
  EXPECT_FALSE(gpus[0].lost);
}

TEST_F(GpuWatchTest, reads_nvlinks_every_tenth_time) {
  GpuWatch watch;
  watch.look(0);
  say("nvlinks=0:17 recoveries=0:1 replays=0:3");
  int looks = 1;
  while (watch.look(0)[0].nvlinks_up == 18 && looks < 100) ++looks;
  EXPECT_EQ(looks, 10);
  const auto gpus = watch.look(0);
  EXPECT_EQ(gpus[0].nvlinks_up, 17);
  EXPECT_EQ(gpus[0].nvlink_recoveries, 18);
  EXPECT_EQ(gpus[0].nvlink_errors, 3 * 18);
  EXPECT_EQ(gpus[1].nvlink_recoveries, 0);
}

TEST_F(GpuWatchTest, keeps_the_newest_of_many_xids_and_counts_all) {
  std::string text;
  for (int i = 1; i <= 40; ++i) text += fmt::format("xid=0:{} ", i);
  say(text);
  GpuWatch watch;
  const auto gpus = watch.look(0);
  ASSERT_EQ(gpus[0].xids.size(), 16u);
  EXPECT_EQ(gpus[0].xids.back(), 40);
  EXPECT_EQ(gpus[0].num_xids, 40);
}

TEST_F(GpuWatchTest, gpus_of_other_jobs_are_none_that_are_lost) {
  say("gpus=3 hidden=0:0");
  GpuWatch watch;
  say("gpus=3 hidden=0:0 xid=0:79 xid=2:13 ecc=1:4");
  const auto gpus = watch.look(0);
  ASSERT_EQ(gpus.size(), 2u);
  EXPECT_EQ(gpus[0].pci, "0000:11:00.0");
  EXPECT_EQ(gpus[0].ecc_errors, 4);
  EXPECT_FALSE(gpus[0].lost || gpus[1].lost);
  EXPECT_TRUE(gpus[0].xids.empty()) << "that of the other job's";
  EXPECT_EQ(gpus[1].xids, std::vector<int>{13});
}

TEST_F(GpuWatchTest, reports_of_a_hanging_gpu_driver_become_stale) {
  constexpr std::chrono::milliseconds kPause{5};
  const HealthWatch watch;
  const auto until = [&](const auto& holds) {
    for (int i = 0; i < 60'000 && !holds(watch.last()); ++i) std::this_thread::sleep_for(kPause);
    return holds(watch.last());
  };
  ASSERT_TRUE(until([](const HealthWatch::Seen& seen) { return !seen.gpus.empty(); }));
  say("hang=0:1");  // only one: a query that continued past the first GPU would see the change on the second
  EXPECT_TRUE(until([](const HealthWatch::Seen& seen) { return seen.age > 2.5; })) << "looks are a second apart";
  say("hang=0:1 recovery=1:1");
  EXPECT_EQ(watch.last().gpus[1].recovery_action, 0);
  say("recovery=1:1");
  EXPECT_TRUE(until([](const HealthWatch::Seen& seen) { return seen.gpus[1].recovery_action == 1 && seen.age < 2; }));
}

TEST_F(GpuWatchTest, without_a_driver_there_are_no_gpus) {
  ::setenv("TRIREME_NVML", "/nowhere/libnvidia-ml.so.1", 1);
  EXPECT_TRUE(GpuWatch().look(0).empty());
}

}  // namespace
}  // namespace tri
