// The driver's view of a node, and when a silent node is lost.
#include "lib/supervise/node_pool.h"

#include <gtest/gtest.h>

#include <cmath>
#include <optional>

namespace tri {
namespace {

// Starts the requested agents, and accepts every order.
class Cluster : public Launcher, public AgentLink {
 public:
  void start_agents(const std::vector<std::string>& nodes) override {
    starts.insert(starts.end(), nodes.begin(), nodes.end());
  }
  std::vector<std::string> failed_agents() override { return std::exchange(failed, {}); }
  void start_ranks(const RanksStart&) override {}
  std::optional<int> ranks_status() override { return {}; }
  void drain_ranks() override {}
  void end_ranks(End) override {}
  bool send(const std::string&, const AgentOrder&) override { return true; }

  std::vector<std::string> starts, failed;
};

constexpr double kStart = 100;

class Pool : public ::testing::Test {
 protected:
  Pool() : pool_({"node0", "node1", "node2"}, "node0", cluster_, cluster_) {
    pool_.set_thresholds(thresholds_);
    pool_.start_all(kStart);
  }
  void hear(const std::string& node, double now) { pool_.take({.node = node, .host = node, .start = 1}, now); }
  Contact contact(const std::string& node, double now) const { return pool_.contact(pool_.at(node), now); }
  // Returns the seconds after `from` at which node1 is lost while node0 reports; none: not within 500 s.
  std::optional<double> lost_after(double from) {
    for (double now = from; now < from + 500; now += 0.5) {
      if (now == std::floor(now)) hear("node0", now);
      if (pool_.is_lost("node1", now)) return now - from;
    }
    return std::nullopt;
  }

  Thresholds thresholds_;
  Cluster cluster_;
  NodePool pool_;
};

TEST_F(Pool, every_state_of_a_node_is_reached) {
  EXPECT_EQ(contact("node1", kStart + 1), Contact::kNoneStarts);
  hear("node0", kStart + 1);
  EXPECT_EQ(contact("node0", kStart + 1), Contact::kHeard);
  EXPECT_EQ(contact("node1", kStart + 1), Contact::kNeverHeard);
  cluster_.failed = {"node1"};
  pool_.note_failed_starts();
  EXPECT_EQ(contact("node1", kStart + 1), Contact::kRefuses);
  hear("node1", kStart + 2);
  EXPECT_EQ(contact("node1", kStart + 2), Contact::kHeard);
  pool_.start_again({"node1"}, kStart + 3);
  EXPECT_EQ(contact("node1", kStart + 3), Contact::kNoneStarts) << "no agent was started since";
  pool_.start_again({"node0"}, kStart + 4);
  hear("node0", kStart + 5);
  EXPECT_EQ(contact("node1", kStart + 5), Contact::kAwaited);
  EXPECT_TRUE(pool_.note_foreign("node1", kStart + 6));
  EXPECT_FALSE(pool_.note_foreign("node1", kStart + 7)) << "known";
  EXPECT_EQ(contact("node1", kStart + 7), Contact::kForeign);
  EXPECT_TRUE(lost_after(kStart + 7).has_value());
  EXPECT_EQ(contact("node1", kStart + 600), Contact::kLost);
}

TEST_F(Pool, a_node_that_was_heard_is_lost_after_silent_seconds_and_three_probes) {
  hear("node0", kStart + 1);
  hear("node1", kStart + 1);
  cluster_.starts.clear();
  const auto lost = lost_after(kStart + 1);
  ASSERT_TRUE(lost);
  EXPECT_GE(*lost, thresholds_.silent_seconds);
  EXPECT_LE(*lost, thresholds_.silent_seconds + 2);
  EXPECT_EQ(cluster_.starts, (std::vector<std::string>{"node1", "node1", "node1"}));
}

TEST_F(Pool, a_node_that_never_reported_has_the_time_of_a_start) {
  hear("node0", kStart + 1);
  const auto lost = lost_after(kStart);
  ASSERT_TRUE(lost);
  EXPECT_GE(*lost, thresholds_.start_seconds);
  EXPECT_LE(*lost, thresholds_.start_seconds + 2);
}

TEST_F(Pool, a_second_agent_has_twice_the_time_of_silence) {
  hear("node0", kStart + 1);
  hear("node1", kStart + 1);
  pool_.start_again({"node0", "node1"}, kStart + 2);
  const auto lost = lost_after(kStart + 3);
  ASSERT_TRUE(lost);
  EXPECT_GE(*lost, 2 * thresholds_.silent_seconds - 1);
  EXPECT_LE(*lost, 2 * thresholds_.silent_seconds + 2);
}

TEST_F(Pool, a_node_that_refuses_is_lost_with_its_second_failure) {
  hear("node0", kStart + 1);
  cluster_.failed = {"node1"};
  pool_.note_failed_starts();
  cluster_.starts.clear();
  EXPECT_FALSE(pool_.is_lost("node1", kStart + 2)) << "another start follows";
  EXPECT_EQ(cluster_.starts, std::vector<std::string>{"node1"});
  cluster_.failed = {"node1"};
  pool_.note_failed_starts();
  EXPECT_TRUE(pool_.is_lost("node1", kStart + 3));
  EXPECT_EQ(cluster_.starts.size(), 1U) << "a lost node is not started again";
}

// If agents that were all requested at once do not report, the launcher may be late: no node is lost before a start
// takes too long, and their starts continue.
TEST_F(Pool, a_launcher_that_fails_is_tried_again) {
  pool_.is_lost("node1", kStart + thresholds_.start_seconds / 2 + 1);
  EXPECT_FALSE(pool_.is_lost("node1", kStart + thresholds_.start_seconds - 1));
  EXPECT_GT(cluster_.starts.size(), 3U);
}

}  // namespace
}  // namespace tri
