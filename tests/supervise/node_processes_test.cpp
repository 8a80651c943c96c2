// Ranks that have no black box yet: seen by their environment, in whatever state they are.
#include "lib/supervise/node_processes.h"

#include <gtest/gtest.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <thread>

#include "io/base/format.h"
#include "tests/io/temporary_folder.h"

namespace tri {
namespace {

// A shell with a child, of which only the shell is a rank.
class Rank {
 public:
  Rank(const std::string& run_dir, const std::string& attempt, int world_rank) {
    std::string shell = "/bin/sh", option = "-c", words = "sleep 1000; true";
    std::string run = fmt::format("{}={}", kSupervisedVariable, run_dir),
                of = fmt::format("{}={}", kAttemptVariable, attempt), rank = fmt::format("PMIX_RANK={}", world_rank),
                node = "SLURMD_NODENAME=node1", path = "PATH=/usr/bin:/bin";
    char* argv[] = {shell.data(), option.data(), words.data(), nullptr};
    char* environment[] = {run.data(), of.data(), rank.data(), node.data(), path.data(), nullptr};
    posix_spawnattr_t own_group;
    ::posix_spawnattr_init(&own_group);
    ::posix_spawnattr_setflags(&own_group, POSIX_SPAWN_SETPGROUP);
    EXPECT_EQ(::posix_spawn(&process_, shell.c_str(), nullptr, &own_group, argv, environment), 0);
    ::posix_spawnattr_destroy(&own_group);
  }
  ~Rank() {
    ::kill(-process_, SIGKILL);
    ::waitpid(process_, nullptr, 0);
  }
  pid_t process() const { return process_; }

 private:
  pid_t process_ = -1;
};

TEST(RanksWithoutBox, are_the_processes_that_the_launcher_has_started) {
  const TemporaryFolder folder;
  const RunOnNode run{.run_dir = folder.path(), .node = "node1", .host = "host1"};
  EXPECT_TRUE(ranks_without_box(run, {}, "now").empty());
  const Rank rank(folder.path(), "now", 3), other(folder.path(), "earlier", 4);
  const auto seen = [&] { return ranks_without_box(run, {}, "now"); };
  for (int i = 0; i < 1000 && seen().empty(); ++i) std::this_thread::sleep_for(std::chrono::milliseconds(5));
  ASSERT_EQ(seen().size(), 1u);
  EXPECT_EQ(seen()[0].process, rank.process());
  EXPECT_EQ(seen()[0].world_rank, 3);
  EXPECT_EQ(seen()[0].state, ProcessState::kRuns);
  EXPECT_FALSE(seen()[0].has_box);

  ::kill(rank.process(), SIGSTOP);
  int status = 0;
  ASSERT_EQ(::waitpid(rank.process(), &status, WUNTRACED), rank.process());
  ASSERT_EQ(seen().size(), 1u);
  EXPECT_EQ(seen()[0].state, ProcessState::kStopped);

  EXPECT_TRUE(ranks_without_box({.run_dir = folder.path(), .node = "node2", .host = "host2"}, {}, "now").empty());
  EXPECT_EQ(ranks_without_box({.run_dir = folder.path(), .node = "", .host = "host1"}, {}, "now").size(), 1u);
  RankRecord box;
  box.attempt = "now";
  box.world_rank = 3;
  EXPECT_TRUE(ranks_without_box(run, {&box, 1}, "now").empty()) << "it has one now";
  box.attempt = "earlier";
  EXPECT_EQ(ranks_without_box(run, {&box, 1}, "now").size(), 1u);
}

}  // namespace
}  // namespace tri
