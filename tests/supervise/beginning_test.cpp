// Ranks that start or fail to start: what the driver sees of them before they have flight recorders.
#include <gtest/gtest.h>

#include "tests/supervise/simulated_cluster.h"

namespace tri {
namespace {

// During MPI's start or before it: no rank has a flight recorder, and all others wait for that rank.
TEST(Beginning, a_rank_that_is_stopped_before_it_has_a_flight_recorder_is_a_hang) {
  SimulatedCluster cluster(3, 2);
  ASSERT_TRUE(cluster.play_until_attempt(1));
  for (int n = 0; n < 2; ++n)
    for (RankSight& rank : cluster.node(n).ranks) rank.has_record = false;
  cluster.node(1).ranks[0].state = ProcessState::kStopped;
  cluster.node(1).ranks[0].world_rank = -1;
  const double began = cluster.now;
  ASSERT_TRUE(cluster.play_until_attempt(2, 40));
  EXPECT_LE(cluster.now - began, 20) << "the doctor's look included";
  EXPECT_EQ(cluster.count(RunEventKind::kAttemptEnd, "cause", "hang"), 1);
  EXPECT_EQ(cluster.count(RunEventKind::kAttemptEnd, "node", "node1"), 1);
}

TEST(Beginning, a_rank_in_a_debugger_is_no_fault) {
  SimulatedCluster cluster(3, 2);
  ASSERT_TRUE(cluster.play_until_attempt(1));
  cluster.play(10);
  cluster.node(1).ranks[0].state = ProcessState::kTraced;
  cluster.play(300);
  EXPECT_EQ(cluster.starts.size(), 1u);
}

// A process that has ended is not one that is stopped forever.
TEST(Beginning, a_stopped_process_that_is_not_seen_any_more_is_forgotten) {
  SimulatedCluster cluster(3, 2);
  ASSERT_TRUE(cluster.play_until_attempt(1));
  const auto ranks = cluster.node(1).ranks;
  cluster.node(1).ranks.push_back(
      {.world_rank = -1, .process = 7, .has_record = false, .state = ProcessState::kStopped});
  cluster.play(5);
  cluster.node(1).ranks = ranks;
  cluster.play(60);
  EXPECT_EQ(cluster.starts.size(), 1u);
}

TEST(Beginning, a_rank_that_spins_before_it_has_a_flight_recorder_is_found_by_the_others_records) {
  SimulatedCluster cluster(3, 2);
  ASSERT_TRUE(cluster.play_until_attempt(1));
  cluster.node(1).ranks[1].has_record = false;
  cluster.play(55);
  EXPECT_EQ(cluster.starts.size(), 1u);
  ASSERT_TRUE(cluster.play_until_attempt(2, 30));
  EXPECT_EQ(cluster.count(RunEventKind::kAttemptEnd, "node", "node1"), 1);
  EXPECT_EQ(cluster.count(RunEventKind::kAttemptEnd, "cause", "hang"), 1);
}

// All others sleep in MPI's start, and none has a flight recorder.
TEST(Beginning, a_rank_that_spins_in_mpis_start_is_named_and_no_other) {
  const auto play = [](int needed, double of_faulty, double of_others, double seconds, bool trains = false,
                       bool and_its_neighbour = false) {
    auto cluster = std::make_unique<SimulatedCluster>(needed + 1, needed);
    EXPECT_TRUE(cluster->play_until_attempt(1));
    if (trains) cluster->append({.kind = RunEventKind::kBegin}, cluster->starts[0].attempt);
    cluster->play(seconds, [&] {
      for (int n = 0; n < needed; ++n)
        for (RankSight& rank : cluster->node(n).ranks) {
          rank.has_record = false;
          const bool computes = rank.world_rank == 1 || (and_its_neighbour && rank.world_rank == 0);
          rank.cpu_seconds += computes ? of_faulty : of_others;
        }
    });
    return cluster;
  };
  for (const int needed : {1, 2}) {
    EXPECT_EQ(play(needed, 1, 0.05, 55)->starts.size(), 1u);
    const auto cluster = play(needed, 1, 0.05, 80);
    EXPECT_EQ(cluster->starts.size(), 2u);
    EXPECT_EQ(cluster->count(RunEventKind::kAttemptEnd, "cause", "hang"), 1);
    EXPECT_EQ(cluster->count(RunEventKind::kAttemptEnd, "node", "node0"), 1);
    EXPECT_EQ(play(needed, 1, 1, 250)->starts.size(), 1u) << "waiting ranks may compute, too";
    EXPECT_EQ(play(needed, 0.05, 0.05, 250)->starts.size(), 1u) << "a slow start";
    EXPECT_EQ(play(needed, 1, 0.05, 250, true)->starts.size(), 1u) << "it trains without flight recorders";
    EXPECT_EQ(play(needed, 1, 0.05, 250, false, true)->starts.size(), 1u)
        << "they wait, computing, for those that sleep, as at a mount";
  }
}

// A container image that is pulled on one node but present on others: this takes minutes, and the doctor is not run.
TEST(Beginning, ranks_that_are_not_started_on_one_node_alone_are_missed_after_a_while) {
  for (const bool on_all : {false, true}) {
    SimulatedCluster cluster(3, 2, 2, false, 2);
    ASSERT_TRUE(cluster.play_until_attempt(1));
    for (int time = 1; time <= 2; ++time) {
      for (int n = on_all ? 0 : 1; n < 2; ++n) cluster.node(n).ranks.pop_back();
      cluster.play(235);
      ASSERT_EQ(cluster.starts.size(), static_cast<size_t>(time));
      EXPECT_EQ(cluster.excluded(), std::vector<std::string>{});
      EXPECT_EQ(cluster.play_until_attempt(1 + time, 30), !on_all);
      EXPECT_EQ(cluster.count(RunEventKind::kAttemptEnd, "node", "node1"), on_all ? 0 : time);
      if (on_all) break;
    }
    EXPECT_EQ(cluster.count(RunEventKind::kDecision, "action", "doctor"), 0);
    EXPECT_EQ(cluster.excluded().size(), on_all ? 0u : 1u) << "the second time";
  }
}

TEST(Beginning, an_image_that_arrives_in_time_disturbs_no_run) {
  SimulatedCluster cluster(3, 2, 2, false, 2);
  ASSERT_TRUE(cluster.play_until_attempt(1));
  const auto ranks = cluster.node(1).ranks;
  cluster.node(1).ranks.clear();
  cluster.play(200);
  cluster.node(1).ranks = ranks;
  cluster.play(300);
  EXPECT_EQ(cluster.starts.size(), 1u);
}

TEST(Beginning, several_nodes_that_start_slowly_are_no_fault_and_do_not_end_the_run) {
  SimulatedCluster cluster(4, 3, 2, false, 2);
  for (int time = 1; time <= 5; ++time) {
    ASSERT_TRUE(cluster.play_until_attempt(time)) << time;
    for (int n = 1; n < 3; ++n) cluster.node(n).ranks.clear();
  }
  EXPECT_EQ(cluster.count(RunEventKind::kAttemptEnd, "cause", "slow start"), 4);
  EXPECT_EQ(cluster.count(RunEventKind::kAttemptEnd, "node", ""), 4);
  EXPECT_EQ(cluster.excluded(), std::vector<std::string>{});
}

// A node whose /dev/shm is full: its ranks run without flight recorders.
TEST(Beginning, a_rank_that_trains_without_a_flight_recorder_is_not_missed) {
  SimulatedCluster cluster(3, 2);
  ASSERT_TRUE(cluster.play_until_attempt(1));
  cluster.node(1).ranks[1].has_record = false;
  cluster.play(20);
  for (int n = 0; n < 2; ++n)
    for (RankSight& rank : cluster.node(n).ranks) rank.phase = RunPhase::kLoad;
  cluster.play(300);
  EXPECT_EQ(cluster.starts.size(), 1u);
}

}  // namespace
}  // namespace tri
