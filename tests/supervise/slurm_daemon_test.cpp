// A node's slurmd as shown in /proc; the test's /proc is a folder.
#include "lib/supervise/slurm_daemon.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "tests/io/temporary_folder.h"

namespace tri {
namespace {

class SlurmDaemonTest : public ::testing::Test {
 protected:
  void begin(int process, const std::string& comm, const std::string& command, int parent = 1) {
    const std::string of = folder / std::to_string(process);
    std::filesystem::create_directories(of);
    std::ofstream(of + "/comm") << comm << "\n";
    std::ofstream(of + "/cmdline") << command;
    std::ofstream(of + "/stat") << process << " (" << comm << ") S " << parent << " 1 1 0\n";
  }
  void end(int process) { std::filesystem::remove_all(folder / std::to_string(process)); }
  SlurmDaemon daemon(const std::string& node) { return SlurmDaemon(node, folder.path()); }

  const TemporaryFolder folder;
  const std::string kZero = std::string(1, '\0');
};

TEST_F(SlurmDaemonTest, that_ends_is_gone_until_another_takes_its_place) {
  begin(10, "bash", "bash");
  begin(11, "slurmstepd", "slurmstepd: [1.0]");
  begin(12, "slurmd", "/usr/sbin/slurmd" + kZero + "-D" + kZero);
  SlurmDaemon own = daemon("node1");
  EXPECT_EQ(own.gone_seconds(), 0);
  end(12);
  begin(12, "bash", "bash");  // another process has its number
  EXPECT_GT(own.gone_seconds(), 0);
  const double before = own.gone_seconds();
  EXPECT_GT(own.gone_seconds(), before);
  begin(13, "slurmd", "/usr/sbin/slurmd" + kZero + "-D" + kZero);
  EXPECT_EQ(own.gone_seconds(), 0);
  end(13);
  EXPECT_LT(own.gone_seconds(), before) << "it counts from zero again";
}

TEST_F(SlurmDaemonTest, of_several_on_one_machine_the_nodes_own_counts) {
  begin(20, "slurmd", "slurmd" + kZero + "-N" + kZero + "node1" + kZero + "-f" + kZero + "slurm.conf" + kZero);
  begin(21, "slurmd", "slurmd" + kZero + "-Nnode2" + kZero);
  begin(22, "slurmd", "slurmd" + kZero + "-N" + kZero + "node10" + kZero);
  SlurmDaemon first = daemon("node1"), second = daemon("node2"), third = daemon("node3");
  end(20);
  EXPECT_GT(first.gone_seconds(), 0);
  EXPECT_EQ(second.gone_seconds(), 0);
  EXPECT_EQ(third.gone_seconds(), 0) << "it was never seen";
  end(21);
  EXPECT_GT(second.gone_seconds(), 0);
}

// slurmd forks for every step, and the child has its name for a moment.
TEST_F(SlurmDaemonTest, with_a_child_is_the_parent) {
  begin(40, "slurmd", "slurmd");
  begin(39, "slurmd", "slurmd", 40);
  SlurmDaemon own = daemon("node1");
  end(39);
  EXPECT_EQ(own.gone_seconds(), 0);
  end(40);
  EXPECT_GT(own.gone_seconds(), 0);
}

TEST_F(SlurmDaemonTest, that_was_not_known_is_looked_for_again) {
  begin(50, "slurmd", "slurmd");
  begin(51, "slurmd", "slurmd");
  SlurmDaemon two = daemon("node1");
  end(51);
  for (int second = 0; second < 10; ++second) EXPECT_EQ(two.gone_seconds(), 0);
  end(50);
  EXPECT_GT(two.gone_seconds(), 0);
}

TEST_F(SlurmDaemonTest, that_cannot_be_identified_or_seen_is_not_reported_missing) {
  SlurmDaemon hidden = daemon("node1");
  begin(30, "slurmd", "slurmd");
  SlurmDaemon without_slurm = daemon("");
  begin(31, "slurmd", "slurmd");
  SlurmDaemon one_of_two = daemon("node1");
  end(30), end(31);
  for (SlurmDaemon* one : {&hidden, &without_slurm, &one_of_two}) EXPECT_EQ(one->gone_seconds(), 0);
}

}  // namespace
}  // namespace tri
