// NVML through a library found by its path, here a fake that belongs to the tests.
#include "io/nvml/nvml.h"

#include <gtest/gtest.h>

#include <cerrno>
#include <cstdlib>

namespace tri {
namespace {

class NvmlTest : public ::testing::Test {
 protected:
  void SetUp() override { ::setenv("TRIREME_NVML", TRI_FAKE_NVML, 1); }
  void TearDown() override {
    ::unsetenv("TRIREME_NVML");
    ::unsetenv("TRIREME_TEST_NVML");
  }
  static std::vector<GpuHealth> gpus_with(const char* words) {
    ::setenv("TRIREME_TEST_NVML", words, 1);
    return value_or_throw(value_or_throw(Nvml::open())->gpus());
  }
};

TEST_F(NvmlTest, reports_healthy_gpus) {
  const auto gpus = gpus_with("gpus=8");
  ASSERT_EQ(gpus.size(), 8u);
  const GpuHealth& gpu = gpus[3];
  EXPECT_EQ(gpu.index, 3);
  EXPECT_EQ(gpu.name, "Fake GPU");
  EXPECT_EQ(gpu.bus_id, "00000000:13:00.0");
  EXPECT_EQ(gpu.pcie_lanes, 16u);
  EXPECT_EQ(gpu.most_pcie_lanes, 16u);
  EXPECT_EQ(gpu.uncorrected_errors, 0u);
  EXPECT_EQ(gpu.remap_pending, false);
  EXPECT_EQ(gpu.remap_failed, false);
  EXPECT_EQ(gpu.recovery_action, 0u);
  EXPECT_EQ(gpu.sm_mhz, 1980u);
  EXPECT_EQ(gpu.slowdown_reasons.value_or(0) & kSlowedByFault, 0u);
  EXPECT_EQ(gpu.nvlinks, 18);
  EXPECT_EQ(gpu.nvlinks_up, 18);
  EXPECT_EQ(value_or_throw(Nvml::open())->driver_version(), "580.65.06");
}

TEST_F(NvmlTest, reports_each_fault_only_for_its_gpu) {
  const auto gpus =
      gpus_with("lanes=1:8 ecc=1:3 remap=1:1 remap=0:2 recovery=1:2 mhz=1:210 slowdown=1:64 nvlinks=1:17");
  ASSERT_EQ(gpus.size(), 2u);
  EXPECT_EQ(gpus[1].pcie_lanes, 8u);
  EXPECT_EQ(gpus[1].uncorrected_errors, 3u);
  EXPECT_EQ(gpus[1].remap_pending, true);
  EXPECT_EQ(gpus[1].recovery_action, 2u);
  EXPECT_EQ(gpus[1].sm_mhz, 210u);
  EXPECT_NE(gpus[1].slowdown_reasons.value_or(0) & kSlowedByFault, 0u);
  EXPECT_EQ(gpus[1].nvlinks_up, 17);
  EXPECT_EQ(gpus[0].remap_failed, true);
  EXPECT_EQ(gpus[0].pcie_lanes, 16u);
  EXPECT_EQ(gpus[0].uncorrected_errors, 0u);
}

TEST_F(NvmlTest, a_gpu_that_does_not_answer_is_named) {
  ::setenv("TRIREME_TEST_NVML", "missing=1:0", 1);
  const auto gpus = value_or_throw(Nvml::open())->gpus();
  ASSERT_FALSE(gpus.ok());
  EXPECT_EQ(gpus.error().message, "GPU 1 does not respond: GPU is lost");
}

// NVML counts all GPUs of a machine, including those that a container or a job's control group hides.
TEST_F(NvmlTest, gpus_of_other_jobs_are_skipped) {
  const auto gpus = gpus_with("gpus=4 hidden=0:0 hidden=2:0 ecc=3:1");
  ASSERT_EQ(gpus.size(), 2u);
  EXPECT_EQ(gpus[0].index, 1);
  EXPECT_EQ(gpus[1].index, 3);
  EXPECT_EQ(gpus[1].uncorrected_errors, 1u);
  const auto hidden = value_or_throw(Nvml::open())->gpu(2, NvlinkFigures::kNone);
  ASSERT_FALSE(hidden.ok());
  EXPECT_EQ(hidden.error().os_error, EACCES);
}

TEST_F(NvmlTest, no_library_and_no_driver_differ_from_a_driver_that_refuses) {
  ::setenv("TRIREME_NVML", "/nowhere/libnvidia-ml.so.1", 1);
  const auto missing = Nvml::open();
  ASSERT_FALSE(missing.ok());
  EXPECT_EQ(missing.error().os_error, ENOENT);
  ::setenv("TRIREME_NVML", TRI_FAKE_NVML, 1);
  ::setenv("TRIREME_TEST_NVML", "refuse=0:9", 1);
  const auto no_driver = Nvml::open();
  ASSERT_FALSE(no_driver.ok());
  EXPECT_EQ(no_driver.error().os_error, ENOENT);
  ::setenv("TRIREME_TEST_NVML", "refuse=0:18", 1);
  const auto refused = Nvml::open();
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().os_error, 0);
  EXPECT_EQ(refused.error().message, "NVML does not start: fake error");
}

}  // namespace
}  // namespace tri
