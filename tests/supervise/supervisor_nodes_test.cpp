// The driver on a simulated cluster and clock: which nodes it uses, excludes, and uses again.
#include "lib/supervise/supervisor.h"

#include <gtest/gtest.h>

#include "tests/supervise/simulated_cluster.h"

namespace tri {
namespace {

using Names = std::vector<std::string>;

TEST(Supervisor, a_node_without_power_is_excluded_and_a_spare_takes_its_place) {
  SimulatedCluster cluster(4, 3);
  ASSERT_TRUE(cluster.play_until_attempt(1));
  cluster.play(10);
  cluster.node(1).alive = false;
  const double began = cluster.now;
  ASSERT_TRUE(cluster.play_until_attempt(2));
  EXPECT_LE(cluster.now - began, 20);
  EXPECT_EQ(cluster.starts[1].nodes, (Names{"node0", "node2", "node3"}));
  EXPECT_EQ(cluster.excluded(), Names{"node1"});
  EXPECT_EQ(std::count(cluster.agent_starts.begin(), cluster.agent_starts.end(), Names{"node1"}), 3) << "probes";
  EXPECT_EQ(cluster.count(RunEventKind::kAttemptEnd, "cause", "node lost"), 1);
}

TEST(Supervisor, a_dead_agent_is_restarted_and_the_attempt_continues) {
  SimulatedCluster cluster(3, 3);
  ASSERT_TRUE(cluster.play_until_attempt(1));
  cluster.play(10);
  cluster.node(2).alive = false;
  cluster.node(2).comes_back = true;
  cluster.play(60);
  EXPECT_FALSE(cluster.supervisor->status());
  EXPECT_EQ(cluster.starts.size(), 1u);
  EXPECT_FALSE(cluster.ranks) << "they run";
  EXPECT_EQ(cluster.node(2).report.attempt, cluster.starts[0].attempt) << "it got the attempt again";
}

// Its ranks and its agent stay alive: the fault shows when an attempt has ended, before another one is tried there.
TEST(Supervisor, a_node_without_slurmd_is_excluded_before_a_step_is_tried_there) {
  SimulatedCluster cluster(3, 2);
  ASSERT_TRUE(cluster.play_until_attempt(1));
  cluster.play(20);
  cluster.node(1).report.daemon_gone = 20;
  cluster.play(100);
  EXPECT_EQ(cluster.starts.size(), 1u) << "what runs there is not disturbed";
  cluster.cause = failure("host0", 139);
  cluster.end_ranks_with(139, 10);
  const double began = cluster.now;
  ASSERT_TRUE(cluster.play_until_attempt(2));
  EXPECT_GE(cluster.now - began, 5) << "it may be about to come back";
  EXPECT_LE(cluster.now - began, 9);
  EXPECT_EQ(cluster.starts[1].nodes, (Names{"node0", "node2"}));
  EXPECT_EQ(cluster.excluded(), Names{"node1"});
  EXPECT_EQ(cluster.history(cluster.wall() + 3599).exclusions.size(), 1u);
  EXPECT_TRUE(cluster.history(cluster.wall() + 3700).exclusions.empty()) << "a service is soon started again";
}

// An upgrade restarts the service on all nodes, while a rank dies for another reason.
TEST(Supervisor, several_nodes_without_slurmd_are_waited_for_and_none_is_blamed) {
  for (const bool comes_back : {true, false}) {
    SimulatedCluster cluster(4, 2);
    ASSERT_TRUE(cluster.play_until_attempt(1));
    cluster.play(20);
    for (int n = 0; n < 4; ++n) cluster.node(n).report.daemon_gone = 20;
    cluster.end_ranks_with(139, 10);
    cluster.play(60);
    EXPECT_EQ(cluster.starts.size(), 1u);
    EXPECT_FALSE(cluster.supervisor->status());
    for (int n = 0; n < 4 && comes_back; ++n) cluster.node(n).report.daemon_gone = 0;
    EXPECT_EQ(cluster.play_until_attempt(2, 100), comes_back);
    EXPECT_EQ(cluster.supervisor->status(), comes_back ? std::nullopt : std::optional(75));
    EXPECT_EQ(cluster.excluded(), Names{}) << "the successor may have them all";
  }
}

TEST(Supervisor, of_several_nodes_without_slurmd_others_take_the_place_for_an_attempt) {
  SimulatedCluster cluster(4, 2);
  ASSERT_TRUE(cluster.play_until_attempt(1));
  cluster.play(20);
  for (int n = 0; n < 2; ++n) cluster.node(n).report.daemon_gone = 20;
  cluster.end_ranks_with(139, 10);
  ASSERT_TRUE(cluster.play_until_attempt(2, 10));
  EXPECT_EQ(cluster.starts[1].nodes, (Names{"node2", "node3"}));
  EXPECT_EQ(cluster.excluded(), Names{});
  for (int n = 0; n < 2; ++n) cluster.node(n).report.daemon_gone = 0;
  cluster.play(20);
  cluster.end_ranks_with(139, 20);
  ASSERT_TRUE(cluster.play_until_attempt(3, 10));
  EXPECT_EQ(cluster.starts[2].nodes, (Names{"node0", "node1"}));
}

TEST(Supervisor, without_a_spare_a_slurmd_that_is_gone_has_as_long_as_a_start_takes) {
  for (const bool comes_back : {true, false}) {
    SimulatedCluster cluster(2, 2);
    ASSERT_TRUE(cluster.play_until_attempt(1));
    cluster.play(20);
    cluster.node(1).report.daemon_gone = 20;
    cluster.end_ranks_with(139, 10);
    cluster.play(100);
    EXPECT_FALSE(cluster.supervisor->status());
    if (comes_back) cluster.node(1).report.daemon_gone = 0;
    EXPECT_EQ(cluster.play_until_attempt(2, 60), comes_back);
    EXPECT_EQ(cluster.excluded(), comes_back ? Names{} : Names{"node1"});
  }
}

// Like srun, which takes ten seconds to report that a node does not answer: probes in progress meanwhile change
// nothing.
TEST(Supervisor, a_node_that_refuses_two_starts_slowly_is_lost_when_the_second_is_known) {
  SimulatedCluster cluster(3, 2);
  ASSERT_TRUE(cluster.play_until_attempt(1));
  for (int n = 0; n < 3; ++n) cluster.node(n).comes_back = true;
  cluster.node(1).refuses = true;
  cluster.node(1).refuses_after = 10;
  cluster.end_ranks_with(233, 0);  // before a rank has started: all nodes must start an agent again
  const double began = cluster.now;
  ASSERT_TRUE(cluster.play_until_attempt(2, 60));
  EXPECT_LE(cluster.now - began, 26) << "twice ten seconds";
  EXPECT_EQ(cluster.excluded(), Names{"node1"});
}

TEST(Supervisor, a_slurmd_that_restarts_is_waited_for) {
  SimulatedCluster cluster(3, 2);
  ASSERT_TRUE(cluster.play_until_attempt(1));
  cluster.play(20);
  cluster.node(1).report.daemon_gone = 1;
  cluster.end_ranks_with(139, 10);
  cluster.play(10);
  EXPECT_EQ(cluster.starts.size(), 1u);
  cluster.node(1).report.daemon_gone = 0;
  ASSERT_TRUE(cluster.play_until_attempt(2, 3));
  EXPECT_EQ(cluster.excluded(), Names{});
}

TEST(Supervisor, exclusions_of_the_past_hold_until_they_expire_or_are_cleared) {
  SimulatedCluster cluster(4, 2);
  const auto past = [&](const std::string& node, double until) {
    cluster.append(exclusion_event({.node = node, .why = "lost", .until = cluster.wall() + until}), "earlier");
  };
  past("node0", 3600);
  past("node1", -1);
  past("node2", 3600);
  cluster.append(clear_exclusion_event("node2"), "");
  ASSERT_TRUE(cluster.play_until_attempt(1));
  EXPECT_EQ(cluster.starts[0].nodes, (Names{"node1", "node2"}));
  for (const Names& names : cluster.agent_starts)
    EXPECT_EQ(std::count(names.begin(), names.end(), "node0"), 0) << "not even an agent";
}

TEST(Supervisor, a_driver_without_any_reports_blames_no_node) {
  for (const bool own_trains : {true, false}) {
    SimulatedCluster cluster(5, 2);
    if (!own_trains)
      cluster.append(exclusion_event({.node = "node0", .why = "ill", .until = cluster.wall() + 3600}), "");
    ASSERT_TRUE(cluster.play_until_attempt(1));
    cluster.play(20);
    for (int n = 1; n < 5; ++n) cluster.node(n).alive = false;
    cluster.play(100);
    EXPECT_EQ(cluster.supervisor->status(), 75) << "a successor may come to another batch host";
    EXPECT_EQ(cluster.excluded(), own_trains ? Names{} : Names{"node0"});
    EXPECT_EQ(cluster.count(RunEventKind::kAttemptEnd, "cause", "communication"), 1);
  }
  // While another node reports, those that do not are lost.
  SimulatedCluster cluster(5, 2);
  ASSERT_TRUE(cluster.play_until_attempt(1));
  cluster.play(20);
  for (int n = 1; n < 4; ++n) cluster.node(n).alive = false;
  ASSERT_TRUE(cluster.play_until_attempt(2));
  EXPECT_EQ(cluster.starts[1].nodes, (Names{"node0", "node4"}));
  Names out = cluster.excluded();
  std::sort(out.begin(), out.end());
  EXPECT_EQ(out, (Names{"node1", "node2", "node3"}));
}

// A node without slurmd, whose agent is alive: the next attempt cannot be launched, which reveals it.
TEST(Supervisor, a_node_that_refuses_each_start_is_lost_at_once_where_others_do_not) {
  enum class Refuse { kOne, kAllForAWhile, kAll };
  for (const Refuse refuse : {Refuse::kOne, Refuse::kAllForAWhile, Refuse::kAll}) {
    const bool all_refuse = refuse != Refuse::kOne;
    SimulatedCluster cluster(4, 3);
    ASSERT_TRUE(cluster.play_until_attempt(1));
    cluster.play(20);
    for (int n = 0; n < 4; ++n) {
      cluster.node(n).comes_back = true;
      cluster.node(n).refuses = all_refuse || n == 1;
    }
    cluster.cause = failure("host0", 5);
    cluster.end_ranks_with(5, 10);
    ASSERT_TRUE(cluster.play_until_attempt(2));
    for (int n = 0; n < 4; ++n) cluster.node(n).ranks.clear();
    cluster.end_ranks_with(1, 10);  // before a rank has started
    const double began = cluster.now;
    if (!all_refuse) {
      ASSERT_TRUE(cluster.play_until_attempt(3, 30));
      EXPECT_LE(cluster.now - began, 15) << "three probes, and no time of silence";
      EXPECT_EQ(cluster.excluded(), Names{"node1"});
      EXPECT_EQ(cluster.starts[2].nodes, (Names{"node0", "node2", "node3"}));
      continue;
    }
    // As if Slurm itself could not be reached.
    cluster.play(40);
    for (int n = 0; n < 4; ++n) cluster.node(n).refuses = refuse == Refuse::kAll;
    EXPECT_EQ(cluster.play_until_attempt(3, 200), refuse == Refuse::kAllForAWhile);
    EXPECT_EQ(cluster.excluded(), Names{});
    EXPECT_EQ(cluster.supervisor->status() == 75, refuse == Refuse::kAll);
  }
}

TEST(Supervisor, a_lost_node_that_is_taken_again_takes_part_in_the_next_attempt) {
  SimulatedCluster cluster(3, 2);
  ASSERT_TRUE(cluster.play_until_attempt(1));
  cluster.play(10);
  cluster.node(1).alive = false;
  ASSERT_TRUE(cluster.play_until_attempt(2));
  EXPECT_EQ(cluster.starts[1].nodes, (Names{"node0", "node2"}));
  cluster.node(1).comes_back = true;  // it was repaired
  cluster.append(clear_exclusion_event("node1"), "");
  cluster.play(60);
  EXPECT_EQ(cluster.starts.size(), 2u) << "which is no reason to disturb the attempt";
  cluster.node(2).alive = false;
  ASSERT_TRUE(cluster.play_until_attempt(3));
  EXPECT_EQ(cluster.starts[2].nodes, (Names{"node0", "node1"}));
  EXPECT_EQ(cluster.excluded(), (Names{"node1", "node2"}));
  // A node that is used again and is still dead is excluded again.
  cluster.append(clear_exclusion_event("node2"), "");
  cluster.cause = failure("host0", 5);
  cluster.end_ranks_with(5, 10);
  ASSERT_TRUE(cluster.play_until_attempt(4));
  EXPECT_EQ(cluster.starts[3].nodes, (Names{"node0", "node1"}));
  cluster.play(200);
  EXPECT_EQ(cluster.excluded(), (Names{"node1", "node2", "node2"}));
}

TEST(Supervisor, a_node_that_is_bad_before_the_first_attempt_is_excluded) {
  SimulatedCluster cluster(4, 2, 2, true);
  cluster.node(0).doctor = 41;
  cluster.node(2).doctor = 40;
  ASSERT_TRUE(cluster.play_until_attempt(1));
  EXPECT_EQ(cluster.starts[0].nodes, (Names{"node1", "node2"}));
  EXPECT_EQ(cluster.excluded(), Names{"node0"});
  EXPECT_EQ(cluster.count(RunEventKind::kDecision, "action", "exclude"), 1);
  EXPECT_EQ(cluster.count(RunEventKind::kDecision, "action", "report"), 1);
  EXPECT_EQ(cluster.count(RunEventKind::kSpan, "what", "diagnosis"), 1);
  cluster.node(1).doctor = 41;
  cluster.play(20);
  cluster.cause = failure("host1", 5);
  cluster.end_ranks_with(5, 10);
  ASSERT_TRUE(cluster.play_until_attempt(2));
  EXPECT_EQ(cluster.excluded(), Names{"node0"}) << "once";
}

TEST(Supervisor, a_doctor_that_does_not_answer_prevents_no_start) {
  SimulatedCluster cluster(3, 2, 2, true);
  cluster.node(1).doctor = -1;
  cluster.given.doctor_seconds = 30;
  const double began = cluster.now;
  ASSERT_TRUE(cluster.play_until_attempt(1));
  EXPECT_EQ(cluster.timeout, 30) << "the doctor knows it";
  EXPECT_GE(cluster.now - began, cluster.given.doctor_seconds);
  EXPECT_EQ(cluster.starts[0].nodes, (Names{"node0", "node1"}));
  EXPECT_EQ(cluster.excluded(), Names{});
  SimulatedCluster stopped(2, 2, 2, true);
  stopped.node(0).doctor = -1;
  stopped.play(10);
  stopped.supervisor->stop_requested(stopped.moment());
  EXPECT_EQ(stopped.supervisor->status(), 75);
  EXPECT_TRUE(stopped.starts.empty());
}

// For example NTP's first synchronization, or a virtual machine that was suspended.
TEST(Supervisor, a_wall_clock_that_is_set_disturbs_nothing) {
  for (const double step : {0.0, 600.0, -600.0, 3600.0, -3600.0}) {
    SimulatedCluster cluster(3, 2);
    for (int n = 0; n < 3; ++n) cluster.node(n).ports = {{.name = "eth0"}};
    cluster.step = -step;
    cluster.play(0.5);  // while waiting for agents
    cluster.step = 0;
    ASSERT_TRUE(cluster.play_until_attempt(1, 10)) << step;
    cluster.play(30);
    cluster.node(1).ports[0].changes += 2;
    cluster.step = step;
    cluster.play(60);
    EXPECT_EQ(cluster.starts.size(), 1u) << step;
    EXPECT_EQ(cluster.agent_starts.size(), 1u) << step << ": no agent is started again";
    EXPECT_EQ(cluster.stop_requests + cluster.kills + cluster.drains, 0) << step;
    cluster.step = -step;  // in the other direction
    cluster.play(10);
    EXPECT_EQ(cluster.starts.size(), 1u) << step;
    cluster.step = step;
    cluster.node(1).alive = false;
    const double began = cluster.now;
    ASSERT_TRUE(cluster.play_until_attempt(2, 60)) << step;
    EXPECT_LE(cluster.now - began, 20) << step;
    EXPECT_EQ(cluster.starts[1].nodes, (Names{"node0", "node2"})) << step;
    EXPECT_EQ(cluster.excluded(), Names{"node1"}) << step;
    EXPECT_EQ(cluster.history(cluster.wall() + 23.9 * 3600).exclusions.size(), 1u) << step;
    const auto ended = std::find_if(cluster.events.begin(), cluster.events.end(),
                                    [](const RunEvent& e) { return e.kind == RunEventKind::kAttemptEnd; });
    const double noticed = ended->number("noticed", 0) - cluster.history(0).attempts[0].began;
    EXPECT_NEAR(noticed, 115, 10) << step << ": by the clock as it was when the attempt began";
  }
}

// An agent that was started after the clock was set back is still the newer one.
TEST(Supervisor, an_agent_that_starts_after_a_step_of_the_clock_is_heard) {
  SimulatedCluster cluster(3, 2);
  ASSERT_TRUE(cluster.play_until_attempt(1));
  cluster.play(10);
  cluster.step = -3600;
  for (int n = 0; n < 3; ++n) cluster.node(n).comes_back = true;
  cluster.end_ranks_with(1, 10);  // the launcher's own failure: agents are started again
  ASSERT_TRUE(cluster.play_until_attempt(2, 40));
  EXPECT_EQ(cluster.starts[1].nodes, cluster.starts[0].nodes);
  EXPECT_EQ(cluster.excluded(), Names{});
}

TEST(Supervisor, a_node_whose_agent_is_of_another_build_is_not_used_and_not_excluded) {
  SimulatedCluster cluster(3, 2);
  cluster.node(1).alive = false;
  cluster.foreign = {"node1"};
  testing::internal::CaptureStderr();
  ASSERT_TRUE(cluster.play_until_attempt(1, 30));
  cluster.play(60);
  const std::string log = testing::internal::GetCapturedStderr();
  EXPECT_EQ(cluster.starts[0].nodes, (Names{"node0", "node2"}));
  EXPECT_EQ(cluster.starts.size(), 1u);
  EXPECT_EQ(cluster.excluded(), Names{});
  const size_t at = log.find("the agent on node1 belongs to another build");
  EXPECT_NE(at, log.npos) << log;
  EXPECT_EQ(log.find("to another build", at + 50), log.npos) << "once";
  // The program was replaced and an agent restarted: the current attempt continues. The next attempt lacks a node.
  cluster.node(2).alive = false;
  cluster.foreign.insert("node2");
  cluster.play(60);
  EXPECT_FALSE(cluster.supervisor->status());
  EXPECT_EQ(cluster.starts.size(), 1u);
  cluster.end_ranks_with(5, 20);
  cluster.play(60);
  EXPECT_EQ(cluster.supervisor->status(), 75) << "the next driver is of the new build";
  EXPECT_EQ(cluster.excluded(), Names{});
}

// A person clears the exclusion of node0 while the others are ready: its processes have not been checked.
TEST(Supervisor, a_node_that_is_cleared_when_an_attempt_starts_waits_for_the_next_one) {
  SimulatedCluster cluster(4, 2);
  cluster.append(exclusion_event({.node = "node0", .why = "ill", .until = cluster.wall() + 3600}), "earlier");
  cluster.node(0).leftovers = 1;
  cluster.node(2).leftovers = 1;  // keeps it from starting
  cluster.play(10);
  ASSERT_TRUE(cluster.starts.empty());
  cluster.append(clear_exclusion_event("node0"), "");
  cluster.node(2).leftovers = 0;
  ASSERT_TRUE(cluster.play_until_attempt(1, 10));
  EXPECT_EQ(cluster.starts[0].nodes, (Names{"node1", "node2"}));
}

TEST(Supervisor, an_exclusion_names_the_command_that_clears_it) {
  SimulatedCluster cluster(3, 2);
  ASSERT_TRUE(cluster.play_until_attempt(1));
  cluster.play(10);
  cluster.node(1).alive = false;
  testing::internal::CaptureStderr();
  ASSERT_TRUE(cluster.play_until_attempt(2));
  const std::string log = testing::internal::GetCapturedStderr();
  EXPECT_NE(log.find("`trireme supervise --nodes /runs/simulated --clear node1`"), log.npos) << log;
}

TEST(Supervisor, too_few_nodes_end_it_for_a_successor) {
  SimulatedCluster cluster(2, 2);
  ASSERT_TRUE(cluster.play_until_attempt(1));
  cluster.play(20);
  cluster.node(0).alive = false;
  cluster.play(60);
  EXPECT_EQ(cluster.supervisor->status(), 75);
  EXPECT_EQ(cluster.excluded(), Names{"node0"});
  EXPECT_EQ(cluster.count(RunEventKind::kDecision, "action", "successor"), 1);
}

}  // namespace
}  // namespace tri
