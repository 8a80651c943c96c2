// The driver's course on a cluster and a clock that are played: what it starts, ends, asks and leaves out.
#include "lib/supervise/supervisor.h"

#include <gtest/gtest.h>

#include "tests/supervise/simulated_cluster.h"

namespace tri {
namespace {

using Names = std::vector<std::string>;

RunEvent failure(const std::string& host, int code, int rank = 0) {
  return {.kind = RunEventKind::kFailure,
          .world_rank = rank,
          .host = host,
          .text = "it failed",
          .fields = {{"code", int64_t{code}}, {"consequence", false}}};
}

TEST(Supervisor, starts_on_the_first_nodes_and_ends_with_the_run) {
  SimulatedCluster cluster(4, 3);
  ASSERT_TRUE(cluster.play_until_attempt(1));
  EXPECT_EQ(cluster.starts[0].nodes, (Names{"node0", "node1", "node2"}));
  EXPECT_EQ(cluster.starts[0].number, 1);
  cluster.play(100);
  EXPECT_FALSE(cluster.supervisor->status());
  cluster.end_ranks_with(0, 500);
  cluster.play(10);
  EXPECT_EQ(cluster.supervisor->status(), 0);
  EXPECT_EQ(cluster.starts.size(), 1u);
  EXPECT_EQ(cluster.excluded(), Names{});
  EXPECT_EQ(cluster.count(RunEventKind::kAttemptEnd, "cause", "finished"), 1);
}

TEST(Supervisor, a_node_without_power_is_left_out_and_a_spare_takes_its_place) {
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

TEST(Supervisor, an_agent_that_dies_alone_is_started_anew_and_the_attempt_goes_on) {
  SimulatedCluster cluster(3, 3);
  ASSERT_TRUE(cluster.play_until_attempt(1));
  cluster.play(10);
  cluster.node(2).alive = false;
  cluster.node(2).comes_back = true;
  cluster.play(60);
  EXPECT_FALSE(cluster.supervisor->status());
  EXPECT_EQ(cluster.starts.size(), 1u);
  EXPECT_FALSE(cluster.ranks) << "they run";
  EXPECT_EQ(cluster.node(2).report.attempt, cluster.starts[0].attempt) << "it was told anew whom to watch";
}

TEST(Supervisor, thresholds_are_reread_while_it_runs) {
  SimulatedCluster cluster(3, 2);
  ASSERT_TRUE(cluster.play_until_attempt(1));
  cluster.given.silent_seconds = 100;
  cluster.play(10);
  cluster.node(0).alive = false;
  cluster.play(90);
  EXPECT_EQ(cluster.starts.size(), 1u);
  cluster.given.silent_seconds = 15;
  ASSERT_TRUE(cluster.play_until_attempt(2, 20));
  EXPECT_EQ(cluster.excluded(), Names{"node0"});
}

TEST(Supervisor, a_stopped_rank_is_a_hang_and_a_suspended_job_is_none) {
  SimulatedCluster cluster(3, 2);
  ASSERT_TRUE(cluster.play_until_attempt(1));
  cluster.play(10);
  for (int n = 0; n < 2; ++n)
    for (RankSight& rank : cluster.node(n).ranks) rank.state = ProcessState::kStopped;
  cluster.play(300);
  EXPECT_EQ(cluster.starts.size(), 1u) << "suspended";
  for (int n = 0; n < 2; ++n)
    for (RankSight& rank : cluster.node(n).ranks) rank.state = ProcessState::kRuns;
  cluster.play(10);
  for (int time = 1; time <= 2; ++time) {
    cluster.node(1).ranks[0].state = ProcessState::kStopped;
    cluster.checkpoint += 10;
    ASSERT_TRUE(cluster.play_until_attempt(1 + time, 40));
  }
  EXPECT_EQ(cluster.starts[1].nodes, (Names{"node0", "node1"})) << "the first time the doctor looks, and finds nothing";
  EXPECT_EQ(cluster.count(RunEventKind::kDecision, "action", "doctor"), 1);
  EXPECT_EQ(cluster.starts[2].nodes, (Names{"node0", "node2"}));
  EXPECT_EQ(cluster.excluded(), Names{"node1"});
}

TEST(Supervisor, errors_of_ports_call_the_doctor_when_an_attempt_fails) {
  for (const int64_t errors : {40, 140}) {
    SimulatedCluster cluster(3, 2);
    cluster.node(1).ports = {{.name = "mlx5_0:1", .errors = 5000}};  // of days before
    cluster.node(1).doctor = 40;
    ASSERT_TRUE(cluster.play_until_attempt(1));
    cluster.play(10);
    for (int i = 0; i < 2; ++i) {
      cluster.node(1).ports[0].errors += errors / 2;
      cluster.play(10);
    }
    EXPECT_EQ(cluster.starts.size(), 1u) << "the attempt goes on";
    cluster.end_ranks_with(5, 10);
    ASSERT_TRUE(cluster.play_until_attempt(2, 60));
    EXPECT_EQ(cluster.excluded(), errors > 100 ? Names{"node1"} : Names{});
    EXPECT_EQ(cluster.count(RunEventKind::kAttemptEnd, "cause", "port errors"), errors > 100 ? 1 : 0);
  }
}

TEST(Supervisor, a_driver_of_gpus_that_hangs_is_suspect_and_its_last_words_do_not_count) {
  SimulatedCluster cluster(3, 2);
  cluster.node(1).gpus = {{.pci = "0000:18:00.0"}};
  cluster.node(1).doctor = 41;
  ASSERT_TRUE(cluster.play_until_attempt(1));
  cluster.node(1).report.gpu_age = 30;
  cluster.node(1).gpus[0].recovery_action = 1;  // which is old
  cluster.play(20);
  EXPECT_EQ(cluster.starts.size(), 1u);
  cluster.end_ranks_with(5, 10);
  ASSERT_TRUE(cluster.play_until_attempt(2, 60));
  EXPECT_EQ(cluster.count(RunEventKind::kAttemptEnd, "cause", "GPU suspect"), 1);
  EXPECT_EQ(cluster.excluded(), Names{"node1"});
}

// Its ranks live on, and its agent: it shows when an attempt has ended, before another one is tried there.
TEST(Supervisor, a_node_without_slurmd_is_left_out_before_a_step_is_tried_there) {
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
  EXPECT_EQ(cluster.history(cluster.now + 3599).exclusions.size(), 1u);
  EXPECT_TRUE(cluster.history(cluster.now + 3700).exclusions.empty()) << "a service is soon started again";
}

// An upgrade restarts the service on all nodes, while a rank dies of something else.
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

// As srun, which takes ten seconds to say that a node does not answer: probes that are under way meanwhile change
// nothing.
TEST(Supervisor, a_node_that_refuses_two_starts_slowly_is_lost_when_the_second_is_known) {
  SimulatedCluster cluster(3, 2);
  ASSERT_TRUE(cluster.play_until_attempt(1));
  for (int n = 0; n < 3; ++n) cluster.node(n).comes_back = true;
  cluster.node(1).refuses = true;
  cluster.node(1).refuses_after = 10;
  cluster.end_ranks_with(233, 0);  // before a rank has begun: all have to start an agent anew
  const double began = cluster.now;
  ASSERT_TRUE(cluster.play_until_attempt(2, 60));
  EXPECT_LE(cluster.now - began, 26) << "twice ten seconds";
  EXPECT_EQ(cluster.excluded(), Names{"node1"});
}

TEST(Supervisor, a_launcher_that_stays_without_ranks_is_killed) {
  SimulatedCluster cluster(3, 2);
  ASSERT_TRUE(cluster.play_until_attempt(1));
  cluster.play(20);
  cluster.leaves_when_asked = false;
  cluster.node(1).ranks[1].state = ProcessState::kGone;
  const double began = cluster.now;
  ASSERT_TRUE(cluster.play_until_attempt(2, 30));
  EXPECT_EQ(cluster.kills, 1);
  EXPECT_LE(cluster.now - began, 10.5) << "five to notice, three for the launcher";
}

TEST(Supervisor, a_slurmd_that_is_started_anew_is_waited_for) {
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

// A failure may be told without a host, and a node that has not reported has none either.
TEST(Supervisor, a_failure_without_a_host_is_of_no_node) {
  SimulatedCluster cluster(3, 2);
  cluster.node(2).alive = false;
  cluster.node(2).report.host.clear();
  ASSERT_TRUE(cluster.play_until_attempt(1));
  cluster.play(5);
  cluster.cause = failure("", 4, 1);
  cluster.end_ranks_with(4, 10);
  cluster.play(10);
  EXPECT_EQ(cluster.count(RunEventKind::kAttemptEnd, "node", "node2"), 0);
  EXPECT_EQ(cluster.count(RunEventKind::kAttemptEnd, "cause", "device"), 1);
}

// A busy launcher takes the other ranks along before it says anything: those on the first node are not to blame.
TEST(Supervisor, ranks_that_are_gone_end_an_attempt_and_the_first_of_them_is_named) {
  SimulatedCluster cluster(3, 2);
  ASSERT_TRUE(cluster.play_until_attempt(1));
  cluster.play(20);
  cluster.node(1).ranks[1].state = ProcessState::kGone;
  cluster.play(2);
  for (int n = 0; n < 2; ++n)
    for (RankSight& rank : cluster.node(n).ranks) rank.state = ProcessState::kGone;
  cluster.checkpoint = 10;
  ASSERT_TRUE(cluster.play_until_attempt(2, 30));
  EXPECT_EQ(cluster.count(RunEventKind::kAttemptEnd, "node", "node1"), 1);
  EXPECT_EQ(cluster.count(RunEventKind::kAttemptEnd, "cause", "death by signal"), 1);
}

TEST(Supervisor, a_death_is_retried_and_the_second_asks_the_doctor) {
  SimulatedCluster cluster(3, 2);
  cluster.node(1).doctor = 41;
  for (int time = 1; time <= 2; ++time) {
    ASSERT_TRUE(cluster.play_until_attempt(time));
    EXPECT_EQ(cluster.starts.back().nodes, (Names{"node0", "node1"})) << time;
    cluster.play(20);
    cluster.cause = failure("host1", 139, 2);
    cluster.end_ranks_with(139, 10 * time);
  }
  ASSERT_TRUE(cluster.play_until_attempt(3));
  EXPECT_EQ(cluster.starts[2].nodes, (Names{"node0", "node2"}));
  EXPECT_EQ(cluster.excluded(), Names{"node1"});
  EXPECT_EQ(cluster.count(RunEventKind::kDecision, "action", "doctor"), 1);
}

TEST(Supervisor, a_hang_of_the_program_leaves_out_nobody) {
  SimulatedCluster cluster(3, 2);
  for (int time = 1; time <= 4; ++time) {
    ASSERT_TRUE(cluster.play_until_attempt(time));
    cluster.play(20);
    cluster.cause = failure("host1", 6);
    cluster.end_ranks_with(6, 10 * time);
  }
  ASSERT_TRUE(cluster.play_until_attempt(5));
  EXPECT_EQ(cluster.excluded(), Names{});
}

TEST(Supervisor, a_sick_gpu_is_relieved_where_a_spare_is_there) {
  SimulatedCluster cluster(3, 2);
  for (int n = 0; n < 3; ++n) cluster.node(n).gpus = {{.pci = "a"}};
  ASSERT_TRUE(cluster.play_until_attempt(1));
  cluster.play(20);
  cluster.node(0).gpus[0].recovery_action = 1;
  cluster.checkpoint = 10;
  ASSERT_TRUE(cluster.play_until_attempt(2, 20));
  EXPECT_EQ(cluster.drains, 1) << "its ranks have saved a checkpoint";
  EXPECT_EQ(cluster.asks + cluster.kills, 0);
  EXPECT_EQ(cluster.starts[1].nodes, (Names{"node1", "node2"}));
  EXPECT_EQ(cluster.excluded(), Names{"node0"});
  // No spare is left: people are told, once, and it goes on.
  cluster.node(1).gpus[0].recovery_action = 2;
  cluster.play(120);
  EXPECT_EQ(cluster.starts.size(), 2u);
  EXPECT_EQ(cluster.count(RunEventKind::kDecision, "action", "report"), 1);
  // Until it ends the attempt itself.
  cluster.end_ranks_with(5, 20);
  cluster.play(60);
  EXPECT_EQ(cluster.supervisor->status(), 75);
  EXPECT_EQ(cluster.excluded(), (Names{"node0", "node1"})) << "the successor goes on without it";
}

TEST(Supervisor, ranks_that_do_not_leave_when_relieved_are_ended) {
  SimulatedCluster cluster(3, 2);
  cluster.status_if_drained.reset();
  for (int n = 0; n < 3; ++n) cluster.node(n).gpus = {{.pci = "a"}};
  ASSERT_TRUE(cluster.play_until_attempt(1));
  cluster.play(20);
  cluster.node(0).gpus[0].lost = true;
  cluster.play(290);
  EXPECT_EQ(cluster.starts.size(), 1u);
  EXPECT_GT(cluster.drains, 1) << "asked again and again";
  ASSERT_TRUE(cluster.play_until_attempt(2, 40));
  EXPECT_EQ(cluster.asks, 1);
  EXPECT_EQ(cluster.excluded(), Names{"node0"});
}

TEST(Supervisor, what_a_gpu_says_after_the_end_explains_it_too) {
  SimulatedCluster cluster(3, 2);
  for (int n = 0; n < 3; ++n) cluster.node(n).gpus = {{.pci = "a"}};
  ASSERT_TRUE(cluster.play_until_attempt(1));
  cluster.play(20);
  cluster.cause = failure("host0", 5, 1);
  cluster.end_ranks_with(5, 10);
  cluster.play(0.4);
  cluster.node(1).gpus[0] = {.pci = "a", .xids = {79}, .num_xids = 1};
  ASSERT_TRUE(cluster.play_until_attempt(2));
  EXPECT_EQ(cluster.excluded(), Names{"node1"});
}

// An agent of a busy machine, whose first sight of its GPU comes after the rank's death, seconds late.
TEST(Supervisor, no_decision_is_made_before_each_node_has_looked_at_its_gpus) {
  SimulatedCluster cluster(3, 2);
  ASSERT_TRUE(cluster.play_until_attempt(1));
  cluster.play(20);
  cluster.cause = failure("host0", 5, 1);
  cluster.play(1);
  cluster.end_ranks_with(5, 10);
  cluster.play(1.2);
  cluster.node(1).alive = false;
  cluster.play(2);
  cluster.node(1).alive = true;
  cluster.node(1).gpus = {{.pci = "a", .xids = {79}, .num_xids = 1}};
  ASSERT_TRUE(cluster.play_until_attempt(2));
  EXPECT_EQ(cluster.excluded(), Names{"node1"});
}

TEST(Supervisor, one_flap_is_ridden_out_and_two_within_five_minutes_are_not) {
  SimulatedCluster cluster(3, 2);
  for (int n = 0; n < 3; ++n) cluster.node(n).ports = {{.name = "eth0", .changes = 5}};
  ASSERT_TRUE(cluster.play_until_attempt(1));
  const auto flap = [&] { cluster.node(1).ports[0].changes += 2; };
  for (int time = 0; time < 3; ++time) {
    cluster.play(310);
    flap();
  }
  cluster.play(280);
  EXPECT_EQ(cluster.starts.size(), 1u);
  EXPECT_EQ(cluster.drains, 0);
  flap();
  cluster.checkpoint = 10;
  ASSERT_TRUE(cluster.play_until_attempt(2, 20));
  EXPECT_EQ(cluster.excluded(), Names{"node1"});
  EXPECT_EQ(cluster.count(RunEventKind::kAttemptEnd, "cause", "port flaps"), 1);
}

// What the trainer says of rank 2, on node1.
void straggle(SimulatedCluster& cluster, bool for_long = true, bool over = false) {
  cluster.append({.kind = RunEventKind::kStraggler,
                  .world_rank = 2,
                  .host = "host1",
                  .text = "rank 2 is slow",
                  .fields = {{"doctor", for_long}, {"over", over}}},
                 cluster.starts.back().attempt);
}

TEST(Supervisor, a_straggler_is_relieved_and_left_out_when_the_doctor_agrees) {
  SimulatedCluster cluster(5, 4);
  cluster.node(1).doctor = 40;
  ASSERT_TRUE(cluster.play_until_attempt(1));
  straggle(cluster, false);
  cluster.play(100);
  EXPECT_EQ(cluster.drains, 0) << "not for long enough";
  straggle(cluster, true);
  straggle(cluster, true, true);
  cluster.play(100);
  EXPECT_EQ(cluster.drains, 0) << "over";
  cluster.checkpoint = 490;
  straggle(cluster);
  ASSERT_TRUE(cluster.play_until_attempt(2, 60));
  EXPECT_EQ(cluster.drains, 1);
  EXPECT_EQ(cluster.starts[1].nodes, (Names{"node0", "node2", "node3", "node4"}));
  EXPECT_EQ(cluster.excluded(), Names{"node1"});
  EXPECT_EQ(cluster.count(RunEventKind::kSpan, "what", "diagnosis"), 1);
}

TEST(Supervisor, a_straggler_in_whom_the_doctor_finds_nothing_stays_and_is_not_relieved_again) {
  SimulatedCluster cluster(5, 4);
  ASSERT_TRUE(cluster.play_until_attempt(1));
  cluster.checkpoint = 490;
  straggle(cluster);
  ASSERT_TRUE(cluster.play_until_attempt(2, 60));
  straggle(cluster);
  cluster.play(1000);
  EXPECT_EQ(cluster.starts.size(), 2u);
  EXPECT_EQ(cluster.starts[1].nodes, cluster.starts[0].nodes);
  EXPECT_EQ(cluster.drains, 1);
  EXPECT_EQ(cluster.excluded(), Names{});
  EXPECT_EQ(cluster.count(RunEventKind::kDecision, "action", "report"), 1);
}

TEST(Supervisor, without_a_spare_a_straggler_is_reported_once_and_blamed_for_nothing) {
  SimulatedCluster cluster(5, 5);
  ASSERT_TRUE(cluster.play_until_attempt(1));
  straggle(cluster);
  cluster.play(1000);
  EXPECT_EQ(cluster.starts.size(), 1u);
  EXPECT_EQ(cluster.drains, 0);
  EXPECT_EQ(cluster.count(RunEventKind::kDecision, "action", "report"), 1);
  cluster.cause = failure("host0", 139, 0);
  cluster.end_ranks_with(139, 10);
  cluster.play(20);
  EXPECT_EQ(cluster.count(RunEventKind::kAttemptEnd, "node", "node0"), 1);
}

TEST(Supervisor, three_attempts_without_a_checkpoint_end_it_with_a_status_of_its_own) {
  SimulatedCluster cluster(4, 2);
  for (int time = 1; time <= 3; ++time) {
    ASSERT_TRUE(cluster.play_until_attempt(time)) << time;
    cluster.play(20);
    cluster.end_ranks_with(5, 0);
  }
  cluster.play(60);
  EXPECT_EQ(cluster.supervisor->status(), kNoProgressStatus);
  EXPECT_EQ(cluster.starts.size(), 3u);
  EXPECT_EQ(cluster.excluded(), Names{});
}

TEST(Supervisor, asked_to_stop_it_lets_the_ranks_save_and_leaves) {
  SimulatedCluster cluster(2, 2);
  ASSERT_TRUE(cluster.play_until_attempt(1));
  cluster.play(20);
  cluster.supervisor->stop_requested(cluster.now);
  cluster.play(20);
  EXPECT_EQ(cluster.drains, 1);
  EXPECT_EQ(cluster.supervisor->status(), 75);
  EXPECT_EQ(cluster.count(RunEventKind::kAttemptEnd, "cause", "drained"), 1);
  SimulatedCluster early(2, 2);
  early.supervisor->stop_requested(early.now);
  EXPECT_EQ(early.supervisor->status(), 75) << "before anything was started";
}

TEST(Supervisor, the_runs_past_says_whom_to_leave_out_until_it_expires_or_is_lifted) {
  SimulatedCluster cluster(4, 2);
  const auto past = [&](const std::string& node, double until) {
    cluster.append(exclusion_event({.node = node, .why = "lost", .until = cluster.now + until}), "earlier");
  };
  past("node0", 3600);
  past("node1", -1);
  past("node2", 3600);
  cluster.append(lift_event("node2"), "");
  ASSERT_TRUE(cluster.play_until_attempt(1));
  EXPECT_EQ(cluster.starts[0].nodes, (Names{"node1", "node2"}));
  for (const Names& names : cluster.agent_starts)
    EXPECT_EQ(std::count(names.begin(), names.end(), "node0"), 0) << "not even an agent";
}

TEST(Supervisor, a_driver_that_hears_nobody_any_more_blames_nobody) {
  for (const bool own_trains : {true, false}) {
    SimulatedCluster cluster(5, 2);
    if (!own_trains) cluster.append(exclusion_event({.node = "node0", .why = "ill", .until = cluster.now + 3600}), "");
    ASSERT_TRUE(cluster.play_until_attempt(1));
    cluster.play(20);
    for (int n = 1; n < 5; ++n) cluster.node(n).alive = false;
    cluster.play(100);
    EXPECT_EQ(cluster.supervisor->status(), 75) << "a successor may come to another batch host";
    EXPECT_EQ(cluster.excluded(), own_trains ? Names{} : Names{"node0"});
    EXPECT_EQ(cluster.count(RunEventKind::kAttemptEnd, "cause", "communication"), 1);
  }
  // While another is heard those that are not are lost.
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

// A node without slurmd, whose agent lives on: the next attempt can't be launched, and shows it.
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
    cluster.end_ranks_with(1, 10);  // before a rank has begun
    const double began = cluster.now;
    if (!all_refuse) {
      ASSERT_TRUE(cluster.play_until_attempt(3, 30));
      EXPECT_LE(cluster.now - began, 15) << "three probes, and no time of silence";
      EXPECT_EQ(cluster.excluded(), Names{"node1"});
      EXPECT_EQ(cluster.starts[2].nodes, (Names{"node0", "node2", "node3"}));
      continue;
    }
    // As where Slurm itself can't be reached.
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
  cluster.append(lift_event("node1"), "");
  cluster.play(60);
  EXPECT_EQ(cluster.starts.size(), 2u) << "which is no reason to disturb the attempt";
  cluster.node(2).alive = false;
  ASSERT_TRUE(cluster.play_until_attempt(3));
  EXPECT_EQ(cluster.starts[2].nodes, (Names{"node0", "node1"}));
  EXPECT_EQ(cluster.excluded(), (Names{"node1", "node2"}));
  // One that is taken again and is dead all the same is left out again.
  cluster.append(lift_event("node2"), "");
  cluster.cause = failure("host0", 5);
  cluster.end_ranks_with(5, 10);
  ASSERT_TRUE(cluster.play_until_attempt(4));
  EXPECT_EQ(cluster.starts[3].nodes, (Names{"node0", "node1"}));
  cluster.play(200);
  EXPECT_EQ(cluster.excluded(), (Names{"node1", "node2", "node2"}));
}

TEST(Supervisor, a_node_that_is_bad_before_the_first_attempt_is_left_out) {
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

TEST(Supervisor, a_doctor_who_does_not_answer_keeps_no_run_from_its_start) {
  SimulatedCluster cluster(3, 2, 2, true);
  cluster.node(1).doctor = -1;
  cluster.given.doctor_seconds = 30;
  const double began = cluster.now;
  ASSERT_TRUE(cluster.play_until_attempt(1));
  EXPECT_EQ(cluster.patience, 30) << "he is told";
  EXPECT_GE(cluster.now - began, cluster.given.doctor_seconds);
  EXPECT_EQ(cluster.starts[0].nodes, (Names{"node0", "node1"}));
  EXPECT_EQ(cluster.excluded(), Names{});
  SimulatedCluster stopped(2, 2, 2, true);
  stopped.node(0).doctor = -1;
  stopped.play(10);
  stopped.supervisor->stop_requested(stopped.now);
  EXPECT_EQ(stopped.supervisor->status(), 75);
  EXPECT_TRUE(stopped.starts.empty());
}

TEST(Supervisor, ranks_that_cannot_be_killed_take_their_node_out) {
  SimulatedCluster cluster(3, 2);
  ASSERT_TRUE(cluster.play_until_attempt(1));
  cluster.play(20);
  cluster.node(0).leftovers = 1;
  cluster.cause = failure("host1", 5);
  cluster.end_ranks_with(5, 10);
  ASSERT_TRUE(cluster.play_until_attempt(2));
  EXPECT_EQ(cluster.excluded(), Names{"node0"});
  EXPECT_EQ(cluster.starts[1].nodes, (Names{"node1", "node2"}));
}

TEST(Supervisor, a_loss_that_is_finite_the_second_time_blames_the_node_in_passing) {
  SimulatedCluster cluster(3, 2);
  ASSERT_TRUE(cluster.play_until_attempt(1));
  for (RankSight& rank : cluster.node(0).ranks) rank.step = 55;
  cluster.play(20);
  cluster.cause = failure("host0", 7);
  cluster.cause->fields["step"] = int64_t{55};
  cluster.end_ranks_with(7, 50);
  ASSERT_TRUE(cluster.play_until_attempt(2));
  cluster.play(20);
  EXPECT_EQ(cluster.excluded(), Names{});
  for (RankSight& rank : cluster.node(0).ranks) rank.step = 60;
  cluster.play(20);
  EXPECT_EQ(cluster.excluded(), Names{"node0"}) << "for the next choice of nodes";
  EXPECT_EQ(cluster.starts.size(), 2u) << "which this is no reason for";
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
