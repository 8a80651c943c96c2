#include "lib/supervise/slurm_job.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>

namespace tri {
namespace {

// As printed by Slurm 22.05, shortened.
std::string job(const std::string& state, int restarts, const std::string& batch_host) {
  return fmt::format(
      "JobId=2 JobName=b UserId=root(0) JobState={} Reason=None Requeue=1 Restarts={} BatchFlag=1 "
      "ReqNodeList=(null) ExcNodeList=(null) NodeList=node[1-2] BatchHost={} NumNodes=2 Command=/a/train.sbatch\n",
      state, restarts, batch_host);
}

TEST(OrphanedJob, is_one_that_runs_without_the_node_of_its_batch_script) {
  EXPECT_EQ(orphan_state_of(job("RUNNING", 0, "node0"), "node1\nnode2\n", 0), OrphanState::kBatchHostLost);
  EXPECT_EQ(orphan_state_of(job("RUNNING", 3, "node"), "node1\nnode2\n", 3), OrphanState::kBatchHostLost);
}

TEST(OrphanedJob, is_none_while_its_batch_host_is_one_of_its_nodes) {
  EXPECT_EQ(orphan_state_of(job("RUNNING", 0, "node1"), "node1\nnode2\n", 0), OrphanState::kUnknown);
  EXPECT_EQ(orphan_state_of(job("RUNNING", 0, "node2"), "node1\nnode2", 0), OrphanState::kUnknown);
}

TEST(OrphanedJob, is_over_when_it_was_put_back_or_has_ended) {
  EXPECT_EQ(orphan_state_of(job("RUNNING", 1, "node0"), "node1\nnode2\n", 0), OrphanState::kOver);
  EXPECT_EQ(orphan_state_of(job("PENDING", 0, "node0"), "node1\nnode2\n", 0), OrphanState::kOver);
  EXPECT_EQ(orphan_state_of(job("COMPLETING", 0, "node0"), "node1\nnode2\n", 0), OrphanState::kOver);
}

TEST(OrphanedJob, is_not_put_back_while_slurm_does_not_answer) {
  EXPECT_EQ(orphan_state_of("", "", 0), OrphanState::kUnknown);
  EXPECT_EQ(orphan_state_of(job("RUNNING", 0, "node0"), "", 0), OrphanState::kUnknown);
  EXPECT_EQ(orphan_state_of(job("RUNNING", 0, ""), "node1\n", 0), OrphanState::kUnknown);
}

// 1,536 agents lose their driver in the same second.
TEST(OrphanedJob, is_requested_by_its_agents_at_different_times) {
  std::mt19937_64 random(36);
  const auto chance = [&] { return static_cast<double>(random() >> 11) * 0x1p-53; };
  for (const int nodes : {2, 48, 1536}) {
    std::map<int, int> questions;  // by second
    double first = 1e9;
    for (int agent = 0; agent < nodes; ++agent) {
      double time = first_question(nodes, chance());
      first = std::min(first, time);
      for (; time < 3600; time += next_question(nodes, chance())) ++questions[static_cast<int>(time)];
    }
    int most = 0, all = 0;
    for (const auto& [second, count] : questions) most = std::max(most, count), all += count;
    EXPECT_LE(most, 14) << nodes << " nodes: a herd";
    EXPECT_LE(all, 3 * 3600) << nodes;
    EXPECT_LE(first, 5) << "none looks after the job for long";
  }
}

}  // namespace
}  // namespace tri
