// The sensors of a GPU through a fake of NVML.
#include "lib/observe/metrics/sensor_watch.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <thread>

#include "tests/io/temporary_folder.h"

namespace tri {
namespace {

using std::chrono::milliseconds;

class SensorWatchTest : public ::testing::Test {
 protected:
  void SetUp() override {
    ::setenv("TRIREME_NVML", TRI_FAKE_NVML, 1);
    ::setenv("TRIREME_TEST_NVML", "watts=1:690 celsius=1:61 gib=1:71 mhz=1:1470", 1);
    ::setenv("TRIREME_TEST_NVML_FILE", words_.c_str(), 1);
  }
  void TearDown() override {
    for (const char* name : {"TRIREME_NVML", "TRIREME_TEST_NVML", "TRIREME_TEST_NVML_FILE"}) ::unsetenv(name);
  }
  // Waits, for a minute at most, until newest() has values, or until it has none.
  static bool becomes(const SensorWatch& watch, bool known) {
    const auto until = std::chrono::steady_clock::now() + std::chrono::minutes(1);
    while (watch.newest().has_value() != known && std::chrono::steady_clock::now() < until)
      std::this_thread::sleep_for(milliseconds(5));
    return watch.newest().has_value() == known;
  }

  TemporaryFolder folder_;
  const std::string words_ = folder_ / "words";
};

TEST_F(SensorWatchTest, reads_the_sensors_of_its_gpu) {
  const SensorWatch watch("0000:11:00.0", std::chrono::hours(1));
  ASSERT_TRUE(becomes(watch, true));
  const GpuSensors now = *watch.newest();
  EXPECT_EQ(now.sm_mhz, 1470u);
  EXPECT_EQ(now.milliwatts, 690000u);
  EXPECT_EQ(now.celsius, 61u);
  EXPECT_EQ(now.memory_bytes, uint64_t{71} << 30);
}

TEST_F(SensorWatchTest, a_driver_that_hangs_leaves_no_old_values_and_delays_no_caller) {
  const auto begin = std::chrono::steady_clock::now();
  {
    const SensorWatch watch("0000:11:00.0", milliseconds(20));
    ASSERT_TRUE(becomes(watch, true));
    std::ofstream(words_) << "hang=1:1";
    EXPECT_TRUE(becomes(watch, false));
  }
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::minutes(1));
  std::ofstream(words_) << "";
  std::this_thread::sleep_for(milliseconds(200));  // the abandoned thread ends, before the environment changes
}

TEST_F(SensorWatchTest, nothing_is_known_of_an_absent_gpu_or_without_the_library) {
  ::setenv("TRIREME_NVML", "/nowhere/libnvidia-ml.so.1", 1);
  const SensorWatch without("0000:11:00.0", milliseconds(1));
  std::this_thread::sleep_for(milliseconds(50));
  EXPECT_FALSE(without.newest());
  ::setenv("TRIREME_NVML", TRI_FAKE_NVML, 1);
  const SensorWatch absent("0000:77:00.0", milliseconds(1));
  std::this_thread::sleep_for(milliseconds(50));
  EXPECT_FALSE(absent.newest());
}

}  // namespace
}  // namespace tri
