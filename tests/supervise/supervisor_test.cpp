// The driver on a simulated cluster and clock: its attempts, and how ranks end them.
#include "lib/supervise/supervisor.h"

#include <gtest/gtest.h>

#include "tests/supervise/simulated_cluster.h"

namespace tri {
namespace {

using Names = std::vector<std::string>;

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

TEST(Supervisor, a_launcher_that_stays_without_ranks_is_killed) {
  SimulatedCluster cluster(3, 2);
  ASSERT_TRUE(cluster.play_until_attempt(1));
  cluster.play(20);
  cluster.exits_on_stop = false;
  cluster.node(1).ranks[1].state = ProcessState::kGone;
  const double began = cluster.now;
  ASSERT_TRUE(cluster.play_until_attempt(2, 30));
  EXPECT_EQ(cluster.kills, 1);
  EXPECT_LE(cluster.now - began, 10.5) << "five to notice, three for the launcher";
}

// A failure may be reported without a host, and a node that has not reported has no host either.
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

// A busy launcher ends the other ranks before it reports anything: those on the first node are not to blame.
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

TEST(Supervisor, a_death_is_retried_and_the_second_runs_the_doctor) {
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

TEST(Supervisor, a_hang_of_the_program_excludes_no_node) {
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

TEST(Supervisor, on_a_stop_request_it_lets_the_ranks_save_and_exits) {
  SimulatedCluster cluster(2, 2);
  ASSERT_TRUE(cluster.play_until_attempt(1));
  cluster.play(20);
  cluster.supervisor->stop_requested(cluster.moment());
  cluster.play(20);
  EXPECT_EQ(cluster.drains, 1);
  EXPECT_EQ(cluster.supervisor->status(), 75);
  EXPECT_EQ(cluster.count(RunEventKind::kAttemptEnd, "cause", "drained"), 1);
  SimulatedCluster early(2, 2);
  early.supervisor->stop_requested(early.moment());
  EXPECT_EQ(early.supervisor->status(), 75) << "before anything was started";
}

TEST(Supervisor, a_drain_that_ranks_missed_while_they_started_is_repeated_soon) {
  for (const int start_seconds : {0, 1, 3, 10}) {
    SimulatedCluster cluster(2, 2);
    cluster.status_if_drained.reset();
    ASSERT_TRUE(cluster.play_until_attempt(1));
    cluster.supervisor->stop_requested(cluster.moment());
    cluster.play(start_seconds);
    EXPECT_EQ(cluster.supervisor->status(), std::nullopt);
    cluster.status_if_drained = 75;
    const double ready = cluster.now;
    while (!cluster.ranks && cluster.now < ready + 60) cluster.play(1);
    EXPECT_EQ(cluster.ranks, 75) << start_seconds;
    EXPECT_LE(cluster.now - ready, start_seconds + 3) << start_seconds;
  }
  SimulatedCluster slow(2, 2);
  slow.status_if_drained.reset();
  ASSERT_TRUE(slow.play_until_attempt(1));
  slow.supervisor->stop_requested(slow.moment());
  slow.play(300);
  EXPECT_GE(slow.drains, 10);
  EXPECT_LE(slow.drains, 16) << "each one is a call on every node";
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

// A spare that also cannot write the event log: its ranks' flight recorders show which rank failed, even after the end.
TEST(Supervisor, a_failure_missing_from_the_event_log_is_read_from_the_flight_record) {
  for (const bool reported : {true, false}) {
    SimulatedCluster cluster(4, 2);
    ASSERT_TRUE(cluster.play_until_attempt(1));
    for (int n = 0; n < 2; ++n)
      for (RankSight& rank : cluster.node(n).ranks) rank.step = 10;
    cluster.play(20);
    cluster.node(1).alive = false;
    ASSERT_TRUE(cluster.play_until_attempt(2));
    EXPECT_EQ(cluster.starts[1].nodes, (Names{"node0", "node2"}));
    cluster.cause = failure("host0", 5);
    cluster.cause->fields["consequence"] = true;
    cluster.end_ranks_with(3, 0);
    const auto sight = [&](int rank, int status, double time) {
      return FailureSight{.attempt = cluster.starts[1].attempt,
                          .world_rank = rank,
                          .status = status,
                          .time = time,
                          .text = "config.yaml can't be read"};
    };
    cluster.play(1);
    if (reported) cluster.node(0).report.failure = sight(0, 5, cluster.wall() - 9);
    if (reported) cluster.node(2).report.failure = sight(2, 3, cluster.wall() - 8);
    ASSERT_TRUE(cluster.play_until_attempt(3, 60));
    EXPECT_EQ(cluster.excluded(), reported ? (Names{"node1", "node2"}) : Names{"node1"});
    EXPECT_EQ(cluster.count(RunEventKind::kAttemptEnd, "cause", "file or checkpoint"), reported ? 1 : 0);
  }
}

// An error of all ranks, for example about token files, has no rank: agents report which node cannot see the run.
TEST(Supervisor, a_spare_that_does_not_see_the_run_folder_is_excluded) {
  for (const int num_blind : {0, 1, 2}) {
    SimulatedCluster cluster(4, 2);
    ASSERT_TRUE(cluster.play_until_attempt(1));
    for (int n = 0; n < 2; ++n)
      for (RankSight& rank : cluster.node(n).ranks) rank.step = 10;
    cluster.play(20);
    cluster.node(1).alive = false;
    ASSERT_TRUE(cluster.play_until_attempt(2));
    EXPECT_EQ(cluster.starts[1].nodes, (Names{"node0", "node2"}));
    cluster.node(2).report.sees_run = num_blind < 1;
    cluster.node(0).report.sees_run = num_blind < 2;
    cluster.end_ranks_with(3, 0);
    EXPECT_EQ(cluster.play_until_attempt(3, 60), num_blind == 1);
    EXPECT_EQ(cluster.excluded(), num_blind == 1 ? (Names{"node1", "node2"}) : Names{"node1"});
    EXPECT_EQ(cluster.supervisor->status(), num_blind == 1 ? std::nullopt : std::optional(3));
  }
}

// Agents report once per second, and by then the ranks may be a hundred steps further.
TEST(Supervisor, an_attempt_ends_at_the_step_that_its_ranks_have_reached) {
  const auto step_of = [](const std::function<void(SimulatedCluster&)>& end) {
    SimulatedCluster cluster(2, 2);
    EXPECT_TRUE(cluster.play_until_attempt(1));
    cluster.play(5);
    for (int n = 0; n < 2; ++n) cluster.node(n).ranks[0].step = 27;
    cluster.play(2);
    end(cluster);
    cluster.play(30);
    const auto ended = std::find_if(cluster.events.begin(), cluster.events.end(),
                                    [](const RunEvent& e) { return e.kind == RunEventKind::kAttemptEnd; });
    return ended == cluster.events.end() ? -1 : ended->number("step", -1);
  };
  EXPECT_EQ(step_of([](SimulatedCluster& c) { c.end_ranks_with(0, 60); }), 60) << "that of its checkpoint";
  EXPECT_EQ(step_of([](SimulatedCluster& c) {
              c.reached = 64;
              c.end_ranks_with(0, 60);
            }),
            64)
      << "that of its last event";
  EXPECT_EQ(step_of([](SimulatedCluster& c) {
              c.node(1).report.watched = c.starts[0].attempt;
              c.node(1).report.step = 71;
              c.end_ranks_with(137, 60);
            }),
            71)
      << "that of the flight recorder of a rank that was killed";
}

}  // namespace
}  // namespace tri
