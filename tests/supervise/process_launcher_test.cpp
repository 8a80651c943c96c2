#include "lib/supervise/process_launcher.h"

#include <gtest/gtest.h>

#include <algorithm>

namespace tri {
namespace {

using Words = LaunchCommands::Words;

bool has(const Words& words, const std::string& word) {
  return std::find(words.begin(), words.end(), word) != words.end();
}

TEST(LaunchCommands, own_ones_name_the_nodes_where_they_are_asked_to) {
  const LaunchCommands commands = own_commands("mpirun --host {nodes} -n 4", "ssh {node} env SLURMD_NODENAME={node}");
  EXPECT_EQ(commands.ranks({"a", "b"}), (Words{"mpirun", "--host", "a,b", "-n", "4"}));
  EXPECT_EQ(commands.agents({"a", "b"}),
            (std::vector<Words>{{"ssh", "a", "env", "SLURMD_NODENAME=a"}, {"ssh", "b", "env", "SLURMD_NODENAME=b"}}));
}

TEST(LaunchCommands, own_ones_start_an_agent_without_a_launcher_on_this_machine) {
  const LaunchCommands commands = own_commands("mpirun -n 4", "");
  EXPECT_EQ(commands.ranks({"a"}), (Words{"mpirun", "-n", "4"}));
  EXPECT_EQ(commands.agents({"a"}), (std::vector<Words>{{}}));
}

TEST(LaunchCommands, of_slurm_are_steps_that_share_the_allocation) {
  const LaunchCommands commands =
      slurm_commands({.ranks_per_node = 8, .cpus_per_rank = 4, .straggler_seconds = 20, .options = {"--mpi=none"}});
  const auto agents = commands.agents({"node1", "node3"});
  ASSERT_EQ(agents.size(), 1u);
  for (const char* word :
       {"--overlap", "--no-kill", "--nodes=2", "--ntasks=2", "--ntasks-per-node=1", "--nodelist=node1,node3"})
    EXPECT_TRUE(has(agents[0], word)) << word;
  const Words ranks = commands.ranks({"node1", "node3"});
  for (const char* word :
       {"--overlap", "--nodes=2", "--ntasks=16", "--ntasks-per-node=8", "--cpus-per-task=4", "--wait=20", "--mpi=pmix"})
    EXPECT_TRUE(has(ranks, word)) << word;
  EXPECT_FALSE(has(ranks, "--no-kill"));
  EXPECT_EQ(ranks.back(), "--mpi=none");  // the user's come last: they win
}

}  // namespace
}  // namespace tri
