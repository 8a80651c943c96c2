// The driver on a simulated cluster and clock: GPUs, ports, and slow ranks.
#include "lib/supervise/supervisor.h"

#include <gtest/gtest.h>

#include "tests/supervise/simulated_cluster.h"

namespace tri {
namespace {

using Names = std::vector<std::string>;

TEST(Supervisor, errors_of_ports_call_the_doctor_when_an_attempt_fails) {
  for (const int64_t errors : {40, 140}) {
    SimulatedCluster cluster(3, 2);
    cluster.node(1).ports = {{.name = "mlx5_0:1", .errors = 5000}};  // from earlier days
    cluster.node(1).doctor = 40;
    ASSERT_TRUE(cluster.play_until_attempt(1));
    cluster.play(10);
    for (int i = 0; i < 2; ++i) {
      cluster.node(1).ports[0].errors += errors / 2;
      cluster.play(10);
    }
    EXPECT_EQ(cluster.starts.size(), 1u) << "the attempt continues";
    cluster.end_ranks_with(5, 10);
    ASSERT_TRUE(cluster.play_until_attempt(2, 60));
    EXPECT_EQ(cluster.excluded(), errors > 100 ? Names{"node1"} : Names{});
    EXPECT_EQ(cluster.count(RunEventKind::kAttemptEnd, "cause", "port errors"), errors > 100 ? 1 : 0);
  }
}

// A driver that cannot read a counter shows all ones; a counter that wraps has grown by little.
TEST(Supervisor, counters_of_ports_that_wrap_or_cannot_be_read_are_no_errors) {
  SimulatedCluster cluster(3, 2);
  PortSight port{.name = "mlx5_0:1", .changes = 40, .errors = 5000};
  cluster.node(1).ports = {port};
  cluster.node(1).doctor = 40;
  ASSERT_TRUE(cluster.play_until_attempt(1));
  cluster.play(10);
  for (const auto& [changes, errors] : {std::pair<int64_t, int64_t>{-1, -1}, {40, 5000}, {40, -30}, {40, 20}}) {
    cluster.node(1).ports[0].changes = changes;
    cluster.node(1).ports[0].errors = errors;
    cluster.play(10);
  }
  EXPECT_EQ(cluster.starts.size(), 1u) << "the attempt continues";
  cluster.end_ranks_with(5, 10);
  ASSERT_TRUE(cluster.play_until_attempt(2, 60));
  EXPECT_EQ(cluster.excluded(), Names{});
  EXPECT_EQ(cluster.count(RunEventKind::kAttemptEnd, "cause", "port errors"), 0);
}

TEST(Supervisor, a_hanging_gpu_driver_is_suspect_and_its_last_report_does_not_count) {
  SimulatedCluster cluster(3, 2);
  cluster.node(1).gpus = {{.pci = "0000:18:00.0"}};
  cluster.node(1).doctor = 41;
  ASSERT_TRUE(cluster.play_until_attempt(1));
  cluster.node(1).report.gpu_age = 30;
  cluster.node(1).gpus[0].recovery_action = 1;  // it is old
  cluster.play(20);
  EXPECT_EQ(cluster.starts.size(), 1u);
  cluster.end_ranks_with(5, 10);
  ASSERT_TRUE(cluster.play_until_attempt(2, 60));
  EXPECT_EQ(cluster.count(RunEventKind::kAttemptEnd, "cause", "GPU suspect"), 1);
  EXPECT_EQ(cluster.excluded(), Names{"node1"});
}

TEST(Supervisor, a_sick_gpu_is_replaced_where_a_spare_is_there) {
  SimulatedCluster cluster(3, 2);
  for (int n = 0; n < 3; ++n) cluster.node(n).gpus = {{.pci = "a"}};
  ASSERT_TRUE(cluster.play_until_attempt(1));
  cluster.play(20);
  cluster.node(0).gpus[0].recovery_action = 1;
  cluster.checkpoint = 10;
  ASSERT_TRUE(cluster.play_until_attempt(2, 20));
  EXPECT_EQ(cluster.drains, 1) << "its ranks have saved a checkpoint";
  EXPECT_EQ(cluster.stop_requests + cluster.kills, 0);
  EXPECT_EQ(cluster.starts[1].nodes, (Names{"node1", "node2"}));
  EXPECT_EQ(cluster.excluded(), Names{"node0"});
  // No spare remains: this is reported once, and the attempt continues.
  cluster.node(1).gpus[0].recovery_action = 2;
  cluster.play(120);
  EXPECT_EQ(cluster.starts.size(), 2u);
  EXPECT_EQ(cluster.count(RunEventKind::kDecision, "action", "report"), 1);
  // It continues until it ends by itself.
  cluster.end_ranks_with(5, 20);
  cluster.play(60);
  EXPECT_EQ(cluster.supervisor->status(), 75);
  EXPECT_EQ(cluster.excluded(), (Names{"node0", "node1"})) << "the requeued job continues without it";
}

TEST(Supervisor, ranks_that_do_not_leave_when_replaced_are_ended) {
  SimulatedCluster cluster(3, 2);
  cluster.status_if_drained.reset();
  for (int n = 0; n < 3; ++n) cluster.node(n).gpus = {{.pci = "a"}};
  ASSERT_TRUE(cluster.play_until_attempt(1));
  cluster.play(20);
  cluster.node(0).gpus[0].lost = true;
  cluster.play(290);
  EXPECT_EQ(cluster.starts.size(), 1u);
  EXPECT_GT(cluster.drains, 1) << "the drain was requested only once";
  ASSERT_TRUE(cluster.play_until_attempt(2, 40));
  EXPECT_EQ(cluster.stop_requests, 1);
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

// An agent on a busy machine, whose first look at its GPU comes seconds after the rank's death.
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

TEST(Supervisor, one_flap_is_tolerated_and_two_within_five_minutes_are_not) {
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

// For example ports of a management controller, or of a second network.
TEST(Supervisor, ports_that_training_does_not_use_may_flap_and_count_errors) {
  SimulatedCluster cluster(3, 2);
  for (int n = 0; n < 3; ++n) cluster.node(n).ports = {{.name = "eth0"}, {.name = SimulatedCluster::kIdlePort}};
  ASSERT_TRUE(cluster.play_until_attempt(1));
  for (int time = 0; time < 5; ++time) {
    cluster.play(20);
    cluster.node(1).ports[1].changes += 2;
    cluster.node(1).ports[1].errors += 200;
    cluster.node(1).ports[1].sent += 1000;
  }
  cluster.play(20);
  EXPECT_EQ(cluster.starts.size(), 1u);
  EXPECT_EQ(cluster.drains, 0);
  cluster.end_ranks_with(5, 10);
  ASSERT_TRUE(cluster.play_until_attempt(2, 60));
  EXPECT_EQ(cluster.excluded(), Names{});
  EXPECT_EQ(cluster.count(RunEventKind::kAttemptEnd, "cause", "communication"), 1);
}

TEST(Supervisor, an_attempt_on_one_node_uses_no_port) {
  SimulatedCluster cluster(2, 1);
  cluster.node(0).ports = {{.name = "eth0"}};
  ASSERT_TRUE(cluster.play_until_attempt(1));
  for (int time = 0; time < 3; ++time) {
    cluster.play(20);
    cluster.node(0).ports[0].changes += 2;
  }
  cluster.play(20);
  EXPECT_EQ(cluster.drains, 0);
}

// The trainer's report about rank 2, on node1.
void straggle(SimulatedCluster& cluster, bool for_long = true, bool over = false) {
  cluster.append({.kind = RunEventKind::kStraggler,
                  .world_rank = 2,
                  .host = "host1",
                  .text = "rank 2 is slow",
                  .fields = {{"doctor", for_long}, {"over", over}}},
                 cluster.starts.back().attempt);
}

TEST(Supervisor, a_straggler_is_replaced_and_excluded_when_the_doctor_agrees) {
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

TEST(Supervisor, a_straggler_that_the_doctor_finds_healthy_stays_and_is_not_replaced_again) {
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

}  // namespace
}  // namespace tri
