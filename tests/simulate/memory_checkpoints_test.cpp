// Checkpoints in memory: the Monte Carlo of faults agrees with closed forms, and the price of a snapshot with its
// parts.
#include "lib/simulate/memory_checkpoints.h"

#include <gtest/gtest.h>

#include <cmath>

#include "lib/simulate/simulation.h"

namespace tri {
namespace {

constexpr int64_t kStops = 100'000;
constexpr double kDeviations = 5;  // standard errors; a seed chosen at random exceeds them once in two million tests

// A job that no stop deprives of both copies, and whose checkpoints count at once. Storage is never newer than memory
// if `every` is a divisor of 300.
FaultyJob job_in_memory(int64_t every) {
  return {.mtbf_s = 4 * 3600,
          .step_s = 6,
          .process_share = 0.3,
          .buddies_share = 0,
          .recovery_s = {200, 220, 300},
          .storage_every = 300,
          .memory_every = every};
}

// E[stop time modulo the period of the snapshots] of an exponential stop time, in steps: N/2 for a long interval
// between stops. Its standard deviation is below that of a uniform number in [0, N).
double expected_lost(const FaultyJob& job, int64_t every) {
  const double period = static_cast<double>(every) * job.step_s;
  return (job.mtbf_s - period / std::expm1(period / job.mtbf_s)) / job.step_s;
}
double lost_error(int64_t every) { return static_cast<double>(every) / std::sqrt(12.0 * kStops); }

TEST(MemoryCheckpoints, a_stop_loses_half_an_interval) {
  for (const int64_t every : {1, 3, 10, 50}) {
    const FaultyJob job = job_in_memory(every);
    const FaultStatistics f = simulate_faults(job, kStops, 7);
    EXPECT_NEAR(f.lost_steps, expected_lost(job, every), kDeviations * lost_error(every)) << every;
    EXPECT_NEAR(f.lost_steps / static_cast<double>(every), 0.5, 0.02) << every;
    EXPECT_EQ(f.restarts[2], 0) << "no restart from storage";
    const double own = static_cast<double>(f.restarts[0]) / kStops;
    // A stop in a recovery can replace a lost process by a lost node.
    EXPECT_NEAR(own, 0.3, 0.01);
  }
}

// Without the choice of the source, the process is that of the closed form: intervals of N steps, stalls of the
// snapshots, and one recovery time.
TEST(MemoryCheckpoints, effective_time_equals_the_closed_form) {
  for (const int64_t every : {1, 10, 100})
    for (const double stall : {0.0, 0.04, 1.0}) {
      FaultyJob job = job_in_memory(every);
      job.recovery_s = {240, 240, 240};
      job.memory_stall_s = stall;
      const double interval = static_cast<double>(every) * job.step_s;
      const double closed = effective_share({job.mtbf_s, 240, stall}, interval);
      const FaultStatistics f = simulate_faults(job, kStops, 11);
      EXPECT_NEAR(f.effective, closed, kDeviations * f.standard_error) << every << " " << stall;
      EXPECT_LT(f.standard_error, 2e-4);
    }
  FaultyJob storage = job_in_memory(0);
  storage.storage_stall_s = 5;
  const FaultStatistics f = simulate_faults(storage, kStops, 11);
  EXPECT_NEAR(f.effective, effective_share({storage.mtbf_s, 300, 5}, 1800), kDeviations * f.standard_error);
  EXPECT_EQ(f.restarts[2], kStops);
}

// Where two buddies are lost, half a storage interval is lost instead of half a memory interval.
TEST(MemoryCheckpoints, lost_buddies_fall_back_to_storage) {
  FaultyJob job = job_in_memory(10);
  job.buddies_share = 0.25;
  const FaultStatistics f = simulate_faults(job, kStops, 3);
  const double share = static_cast<double>(f.restarts[2]) / kStops;
  // Stops in a recovery raise the share: at most one more draw in 1 + R/M stops.
  EXPECT_GT(share, 0.7 * 0.25 - kDeviations * std::sqrt(0.25 / kStops));
  EXPECT_LT(share, 0.7 * 0.25 * (1 + 300 / job.mtbf_s) + kDeviations * std::sqrt(0.25 / kStops));
  // A restart from storage loses a uniform part of 300 steps if the segment began at a random place in them, and
  // slightly less if it began at a checkpoint.
  const double least = (1 - share) * expected_lost(job, 10) + share * expected_lost(job, 300);
  const double error = std::sqrt(share) * lost_error(300) + lost_error(10);
  EXPECT_GT(f.lost_steps, least - kDeviations * error);
  EXPECT_LT(f.lost_steps, (1 - share) * 5 + share * 150 + kDeviations * error);
  FaultyJob never = job;
  never.buddies_share = 0;
  FaultyJob always = job_in_memory(0);
  EXPECT_LT(f.effective, simulate_faults(never, kStops, 3).effective);
  EXPECT_GT(f.effective, simulate_faults(always, kStops, 3).effective);
}

// A snapshot that is incomplete at the stop does not count: its time until it counts adds to what is lost.
TEST(MemoryCheckpoints, an_incomplete_snapshot_is_not_used) {
  FaultyJob job = job_in_memory(10);
  job.memory_complete_s = job.storage_complete_s = 24;  // four steps
  const FaultStatistics f = simulate_faults(job, kStops, 5);
  // A stop within the first 24 s loses all since the restart; after that, what counts is 24 s old at least.
  const double m = job.mtbf_s, later = std::exp(-24 / m);
  const double lost = later * (4 + expected_lost(job, 10)) + (m - later * (m + 24)) / job.step_s;
  EXPECT_NEAR(f.lost_steps, lost, kDeviations * lost_error(10));
}

TEST(MemoryCheckpoints, the_same_seed_gives_the_same_numbers) {
  const FaultyJob job = job_in_memory(10);
  const FaultStatistics a = simulate_faults(job, 1000, 1), b = simulate_faults(job, 1000, 1),
                        c = simulate_faults(job, 1000, 2);
  EXPECT_EQ(a.effective, b.effective);
  EXPECT_EQ(a.lost_steps, b.lost_steps);
  EXPECT_EQ(a.restarts, b.restarts);
  EXPECT_NE(a.effective, c.effective);
}

Workload workload() {
  Config config =
      value_or_throw(parse_config("model: {layers: 8, hidden: 1024, heads: 16}\n"
                                  "data: {global_batch: 64}\n"
                                  "parallel: {tp: 2, pp: 2, dp: 8}\n"
                                  "precision: {compute: bf16}\n",
                                  "test.yaml", {}));
  return workload_of(value_or_throw(resolve_config(std::move(config), 32)));
}

TEST(SnapshotPrice, a_rank_copies_and_sends_its_share_of_the_state) {
  const Workload w = workload();
  const Cluster cluster;
  const SnapshotPrice p = snapshot_price(w, cluster, 1);
  // The fullest stage holds between the mean and all of the state.
  const double mean = checkpoint_bytes(w) / w.ranks();
  EXPECT_GE(p.bytes, 0.999 * mean);
  EXPECT_LT(p.bytes, 2 * mean);
  EXPECT_DOUBLE_EQ(p.copy_s, p.bytes / (cluster.node.host_gb_per_s * 1e9));
  EXPECT_DOUBLE_EQ(p.send_s, p.bytes / (cluster.network.gb_per_s * cluster.network.share * 1e9));
  EXPECT_EQ(p.exposed_copy_s, p.copy_s) << "nothing hides it by default";
  EXPECT_EQ(p.exposed_send_s, 0) << "the network is idle for most of a second";
  EXPECT_GT(p.complete_s, p.copy_s + p.send_s);
  EXPECT_NEAR(p.seconds(), cluster.faults.snapshot_s + p.copy_s, 1e-12);
}

TEST(SnapshotPrice, compute_hides_the_copy_and_loses_its_memory_bandwidth) {
  const Workload w = workload();
  Cluster cluster;
  cluster.faults.copy_hidden = 1;
  cluster.faults.snapshot_s = 0;
  const SnapshotPrice p = snapshot_price(w, cluster, 1);
  EXPECT_EQ(p.exposed_copy_s, 0);
  EXPECT_NEAR(p.seconds(), p.bytes / (cluster.device.memory_gb_per_s * 1e9 * cluster.software.memory_share), 1e-12);
  EXPECT_LT(p.seconds(), 0.1 * p.copy_s);
}

TEST(SnapshotPrice, a_network_without_idle_time_delays_training) {
  const Workload w = workload();
  Cluster cluster;
  const double busy = [&] {
    const TransferLoads loads = transfer_loads(w, cluster, RingTimes(cluster));
    return loads.dp + loads.pp_direction;
  }();
  const SnapshotPrice full = snapshot_price(w, cluster, busy);
  EXPECT_NEAR(full.exposed_send_s, full.send_s, 1e-12);
  // Only the idle time of one step hides it, since the next step's end waits for it.
  EXPECT_NEAR(snapshot_price(w, cluster, busy + full.send_s / 4).exposed_send_s, 0.75 * full.send_s, 1e-9);
  EXPECT_NEAR(snapshot_price(w, cluster, busy + 2 * full.send_s).exposed_send_s, 0, 1e-9);
}

TEST(MemoryCheckpoints, rows_differ_only_in_the_memory_interval) {
  const Workload w = workload();
  const Cluster cluster;
  const FaultyJob storage = faulty_job(w, cluster, 1, 0), memory = faulty_job(w, cluster, 1, 10);
  EXPECT_EQ(storage.storage_every, memory.storage_every);
  EXPECT_EQ(storage.storage_stall_s, memory.storage_stall_s);
  EXPECT_EQ(storage.recovery_s[2], memory.recovery_s[2]);
  EXPECT_EQ(storage.recovery_s[2], cluster.faults.detect_s + cluster.faults.diagnose_s + cluster.faults.restart_s);
  EXPECT_LT(memory.recovery_s[0], memory.recovery_s[1]);
  EXPECT_GE(memory.recovery_s[0], cluster.faults.detect_s + cluster.faults.diagnose_s);
  const auto rows = memory_checkpoint_rows(w, cluster, 1, 3);
  ASSERT_EQ(rows.size(), 4u);
  EXPECT_EQ(rows[0].job.memory_every, 0);
  EXPECT_EQ(rows[1].job.memory_every, 10);
  EXPECT_EQ(rows[2].job.memory_every, 1);
  EXPECT_EQ(rows[3].job.memory_every, 3);
  EXPECT_EQ(memory_checkpoint_rows(w, cluster, 1, 10).size(), 3u);
  EXPECT_LT(rows[1].faults.lost_steps, rows[0].faults.lost_steps);
}

}  // namespace
}  // namespace tri
