// A watch reads until it is finished, and reports medians.
#include "lib/bench/load_watch.h"

#include <gtest/gtest.h>

#include <atomic>
#include <future>
#include <vector>

namespace tri::test {
namespace {

TEST(LoadWatch, reports_the_median_of_each_number) {
  const std::vector<GpuLoad> loads = {{1980, 100, 700, 30}, {1470, 690, 700, 60}, {1500, 700, 700, 50}};
  size_t next = 0;  // used by the watch's thread
  std::promise<void> read_all;
  LoadWatch watch(
      [&]() -> std::optional<GpuLoad> {
        if (next < loads.size()) return loads[next++];
        read_all.set_value();
        return std::nullopt;
      },
      std::chrono::milliseconds(0));
  read_all.get_future().wait();
  const std::optional<GpuLoad> load = watch.finish();
  ASSERT_TRUE(load);
  EXPECT_EQ(load->sm_mhz, 1500);
  EXPECT_EQ(load->watts, 690);
  EXPECT_EQ(load->watts_limit, 700);
  EXPECT_EQ(load->celsius, 50);
}

TEST(LoadWatch, ends_while_it_waits_for_its_next_reading) {
  std::promise<void> first;
  std::atomic<int> reads = 0;
  const auto read = [&]() -> std::optional<GpuLoad> {
    if (++reads == 1) first.set_value();
    return GpuLoad{.sm_mhz = 1000};
  };
  LoadWatch watch(read, std::chrono::hours(1));
  first.get_future().wait();
  EXPECT_EQ(watch.finish()->sm_mhz, 1000) << "an hour early";
  EXPECT_EQ(reads, 1);
}

TEST(LoadWatch, reports_nothing_if_there_is_nothing_to_read) {
  LoadWatch watch([] { return std::nullopt; });
  EXPECT_FALSE(watch.finish());
  const LoadWatch forgotten([] { return GpuLoad{}; }, std::chrono::hours(1));  // its destructor ends the thread
}

}  // namespace
}  // namespace tri::test
