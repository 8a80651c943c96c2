// Ranks that compute for longer than their stage, on counts made for it.
#include "lib/supervise/stragglers.h"

#include <gtest/gtest.h>

#include <random>

namespace tri {
namespace {

// Eight ranks on four nodes, two stages of four ranks.
class StragglersTest : public ::testing::Test {
 protected:
  // So many steps of each, which take `seconds` each, times what `slow` says of the rank.
  std::vector<Straggler> steps(int count, const std::map<int, double>& slow = {}, double noise = 0) {
    for (int r = 0; r < kRanks; ++r) {
      RankSight& rank = sights[static_cast<size_t>(r)];
      const double times = slow.count(r) > 0 ? slow.at(r) : 1;
      const double of_stage = rank.stage == 1 ? 1.5 : 1;  // the head's is rightly slower
      for (int i = 0; i < count; ++i)
        rank.compute_seconds += of_stage * times * (1 + noise * std::uniform_real_distribution<>(-1, 1)(random));
      rank.timed_steps += count;
      stragglers.take(fmt::format("node{}", r / 2), {&rank, 1});
    }
    return stragglers.judge(kRanks, thresholds);
  }
  std::vector<Straggler> windows(int count, const std::map<int, double>& slow = {}, double noise = 0) {
    std::vector<Straggler> told;
    for (int i = 0; i < count; ++i)
      for (const Straggler& straggler : steps(50, slow, noise)) told.push_back(straggler);
    return told;
  }
  void SetUp() override {
    for (int r = 0; r < kRanks; ++r) sights.push_back({.world_rank = r, .stage = r / 4});
  }

  static constexpr int kRanks = 8;
  Thresholds thresholds;
  Stragglers stragglers;
  std::vector<RankSight> sights;
  std::mt19937 random{16};
};

TEST_F(StragglersTest, a_slow_rank_is_warned_of_after_five_windows_and_lasts_after_ten) {
  EXPECT_TRUE(windows(4, {{5, 1.12}}).empty());
  const auto warned = windows(1, {{5, 1.12}});
  ASSERT_EQ(warned.size(), 1u);
  EXPECT_EQ(warned[0].world_rank, 5);
  EXPECT_EQ(warned[0].node, "node2");
  EXPECT_FALSE(warned[0].lasting);
  EXPECT_NEAR(warned[0].slower, 0.12, 1e-9);
  EXPECT_TRUE(windows(4, {{5, 1.12}}).empty());
  const auto lasting = windows(1, {{5, 1.12}});
  ASSERT_EQ(lasting.size(), 1u);
  EXPECT_TRUE(lasting[0].lasting);
  EXPECT_EQ(lasting[0].text(),
            "rank 5 on node2 computes 12 % longer than the median of its stage, 10 windows of steps on end");
  EXPECT_TRUE(windows(20, {{5, 1.12}}).empty()) << "once is enough";
}

TEST_F(StragglersTest, seven_percent_is_a_warning_and_four_are_nothing) {
  const auto told = windows(40, {{1, 1.07}, {6, 1.04}});
  ASSERT_EQ(told.size(), 1u);
  EXPECT_EQ(told[0].world_rank, 1);
  EXPECT_FALSE(told[0].lasting);
}

TEST_F(StragglersTest, one_that_keeps_up_for_a_window_begins_anew) {
  EXPECT_EQ(windows(9, {{5, 1.2}}).size(), 1u);
  EXPECT_TRUE(windows(1).empty());
  EXPECT_EQ(windows(9, {{5, 1.2}}).size(), 1u) << "the warning again, and no more";
}

TEST_F(StragglersTest, a_slow_stage_and_noise_blame_nobody) {
  EXPECT_TRUE(windows(40, {{4, 1.3}, {5, 1.3}, {6, 1.3}, {7, 1.3}}).empty());
  EXPECT_TRUE(windows(200, {}, 0.5).empty());  // 10,000 steps
}

TEST_F(StragglersTest, a_small_stage_has_nobody_to_compare_with) {
  for (RankSight& rank : sights) rank.stage = rank.world_rank / 2;
  EXPECT_TRUE(windows(40, {{5, 2.0}}).empty());
}

TEST_F(StragglersTest, a_window_ends_when_all_ranks_have_done_their_steps) {
  std::vector<int> told;
  for (int step = 1; step <= 400; ++step)
    if (!steps(1, {{5, 1.2}}).empty()) told.push_back(step);
  EXPECT_EQ(told, std::vector<int>{250}) << "five windows of 50 steps";
  EXPECT_TRUE(windows(1, {{5, 1.2}}).empty());
  EXPECT_TRUE(stragglers.judge(kRanks + 1, thresholds).empty()) << "a rank has not been seen yet";
}

TEST_F(StragglersTest, another_process_in_a_ranks_place_begins_anew) {
  EXPECT_EQ(windows(9, {{5, 1.2}}).size(), 1u);
  sights[5].timed_steps = 0, sights[5].compute_seconds = 0;
  EXPECT_TRUE(windows(2, {{5, 1.2}}).empty());
  stragglers.clear();
  EXPECT_EQ(windows(9, {{5, 1.2}}).size(), 1u);
}

TEST_F(StragglersTest, none_are_looked_for_where_the_threshold_says_so) {
  thresholds.straggler_windows = 0;
  EXPECT_TRUE(windows(20, {{5, 3.0}}).empty());
}

}  // namespace
}  // namespace tri
