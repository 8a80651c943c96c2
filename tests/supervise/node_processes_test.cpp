// Ranks without a flight recorder: found by their environment, in any state.
#include "lib/supervise/node_processes.h"

#include <gtest/gtest.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <thread>

#include "io/base/format.h"
#include "io/flight_recorder/flight_recorder.h"
#include "tests/io/temporary_folder.h"

namespace tri {
namespace {

constexpr int kMostPauses = 60'000;  // of 5 ms or more, while waiting for other processes on a busy machine

// A shell with a child, of which only the shell is a rank. `of_node` "": it does not state its node.
class Rank {
 public:
  Rank(const std::string& run_dir, const std::string& attempt, int world_rank, const std::string& of_node = "node1",
       std::string words = "sleep 1000; true") {
    std::string shell = "/bin/sh", option = "-c";
    std::string run = fmt::format("{}={}", kSupervisedVariable, run_dir),
                of = fmt::format("{}={}", kAttemptVariable, attempt), rank = fmt::format("PMIX_RANK={}", world_rank),
                node = (of_node.empty() ? "NONE=" : "SLURMD_NODENAME=") + of_node, path = "PATH=/usr/bin:/bin";
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

TEST(RanksWithoutRecord, are_the_processes_that_the_launcher_has_started) {
  const TemporaryFolder folder;
  const RunOnNode run{.run_dir = folder.path(), .node = "node1", .host = "host1"};
  EXPECT_TRUE(ranks_without_record(run, {}, "now").empty());
  const Rank rank(folder.path(), "now", 3), other(folder.path(), "earlier", 4);
  const auto seen = [&] { return ranks_without_record(run, {}, "now"); };
  for (int i = 0; i < kMostPauses && seen().empty(); ++i) std::this_thread::sleep_for(std::chrono::milliseconds(5));
  ASSERT_EQ(seen().size(), 1u);
  EXPECT_EQ(seen()[0].process, rank.process());
  EXPECT_EQ(seen()[0].world_rank, 3);
  EXPECT_EQ(seen()[0].state, ProcessState::kRuns);
  EXPECT_FALSE(seen()[0].has_record);

  ::kill(rank.process(), SIGSTOP);
  int status = 0;
  ASSERT_EQ(::waitpid(rank.process(), &status, WUNTRACED), rank.process());
  ASSERT_EQ(seen().size(), 1u);
  EXPECT_EQ(seen()[0].state, ProcessState::kStopped);

  EXPECT_TRUE(ranks_without_record({.run_dir = folder.path(), .node = "node2", .host = "host2"}, {}, "now").empty());
  EXPECT_EQ(ranks_without_record({.run_dir = folder.path(), .node = "", .host = "host1"}, {}, "now").size(), 1u);
  RankRecord record;
  record.attempt = "now";
  record.world_rank = 3;
  EXPECT_TRUE(ranks_without_record(run, {&record, 1}, "now").empty()) << "it has one now";
  record.attempt = "earlier";
  EXPECT_EQ(ranks_without_record(run, {&record, 1}, "now").size(), 1u);
}

TEST(RanksWithoutRecord, report_how_long_they_have_computed) {
  const TemporaryFolder folder;
  RunOnNode run{.run_dir = folder.path(), .node = "node1", .host = "host1"};
  const Rank spins(folder.path(), "now", 0, "node1", "while :; do :; done"), sleeps(folder.path(), "now", 1);
  const auto of = [&](const Rank& rank) {
    for (const RankSight& sight : ranks_without_record(run, {}, "now"))
      if (sight.process == rank.process()) return sight.cpu_seconds;
    return 0.0;
  };
  run.program = std::filesystem::read_symlink(fmt::format("/proc/{}/exe", spins.process())).filename();
  for (int i = 0; i < kMostPauses && of(spins) < 0.3; ++i) std::this_thread::sleep_for(std::chrono::milliseconds(10));
  EXPECT_GE(of(spins), 0.3);
  EXPECT_LT(of(sleeps), 0.3);
  run.program = "trireme";
  EXPECT_EQ(of(spins), 0) << "what starts a rank may compute";
}

TEST(RunFolder, is_seen_by_its_event_log) {
  const TemporaryFolder folder;
  EXPECT_FALSE(sees_run_folder(folder.path()));
  std::ofstream(folder / "events.jsonl") << "\n";
  EXPECT_TRUE(sees_run_folder(folder.path()));
  EXPECT_FALSE(sees_run_folder(folder / "not_mounted"));
}

TEST(FirstFailure, is_the_first_own_failure_of_a_rank) {
  const auto record = [](const std::string& attempt, int rank, std::optional<FailureRecord> failure) {
    RankRecord record;
    record.attempt = attempt;
    record.world_rank = rank;
    record.failure = std::move(failure);
    return record;
  };
  std::vector<RankRecord> records{record("now", 0, FailureRecord{.code = 5, .realtime = 1'000'000'000}),
                                  record("now", 1, FailureRecord{.code = 3, .realtime = 4'000'000'000, .text = "gone"}),
                                  record("now", 2, FailureRecord{.code = 3, .realtime = 5'000'000'000}),
                                  record("now", 3, FailureRecord{.code = 3, .consequence = true, .realtime = 1}),
                                  record("earlier", 4, FailureRecord{.code = 3, .realtime = 1}),
                                  record("now", 5, {})};
  auto first = first_failure(records, "now");
  ASSERT_TRUE(first);
  EXPECT_EQ(first->world_rank, 1);
  EXPECT_EQ(first->status, 3);
  EXPECT_EQ(first->text, "gone");
  EXPECT_DOUBLE_EQ(first->time, 4);
  records.erase(records.begin() + 1, records.begin() + 3);
  EXPECT_EQ(first_failure(records, "now")->world_rank, 0) << "communication, where nothing else is known";
  EXPECT_FALSE(first_failure(records, "other"));
}

// An agent, identified by its command line and environment.
class OtherAgent {
 public:
  OtherAgent(const std::string& run_dir, const std::string& of_node) {
    std::string shell = "/bin/sh", option = "-c", words = "sleep 1000; true", name = "supervise", agent = "--agent",
                run = run_dir, node = "SLURMD_NODENAME=" + of_node, path = "PATH=/usr/bin:/bin";
    char* argv[] = {shell.data(), option.data(), words.data(), name.data(), agent.data(), run.data(), nullptr};
    char* environment[] = {node.data(), path.data(), nullptr};
    posix_spawnattr_t own_group;
    ::posix_spawnattr_init(&own_group);
    ::posix_spawnattr_setflags(&own_group, POSIX_SPAWN_SETPGROUP);
    EXPECT_EQ(::posix_spawn(&process_, shell.c_str(), nullptr, &own_group, argv, environment), 0);
    ::posix_spawnattr_destroy(&own_group);
  }
  ~OtherAgent() {
    ::kill(-process_, SIGKILL);
    ::waitpid(process_, nullptr, 0);
  }

 private:
  pid_t process_ = -1;
};

// As with `mpirun` on machines that several nodes share: an agent must not end another agent's ranks.
TEST(Leftovers, that_do_not_say_their_node_are_of_the_only_agent_here) {
  const TemporaryFolder folder;
  const RunOnNode run{.run_dir = folder.path(), .node = "node1", .host = "host1"};
  const Rank unmarked(folder.path(), "earlier", 3, "");
  const auto is_left = [&] {
    const auto left = leftovers(run, {}, "now");
    return std::find(left.begin(), left.end(), unmarked.process()) != left.end();
  };
  for (int i = 0; i < kMostPauses && !is_left(); ++i) std::this_thread::sleep_for(std::chrono::milliseconds(5));
  EXPECT_TRUE(is_left());
  {
    const OtherAgent same_node(folder.path(), "node1");
    EXPECT_TRUE(is_left()) << "one that is restarted";
  }
  const OtherAgent other(folder.path(), "node2");
  for (int i = 0; i < kMostPauses && is_left(); ++i) std::this_thread::sleep_for(std::chrono::milliseconds(5));
  EXPECT_FALSE(is_left());
  const Rank marked(folder.path(), "earlier", 4);
  for (int i = 0; i < kMostPauses && leftovers(run, {}, "now").empty(); ++i)
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  EXPECT_FALSE(leftovers(run, {}, "now").empty());
  EXPECT_FALSE(is_left());
}

// A `trireme train` that was started by mistake in a shell alongside a driver has a flight recorder of the run, but no
// mark of a driver.
TEST(Leftovers, are_no_ranks_that_a_person_has_started) {
  const TemporaryFolder folder;
  ::setenv("TRIREME_BLACK_BOXES", folder.path().c_str(), 1);
  const std::string run_dir = folder / "run";
  const auto record = value_or_throw(FlightRecorder::create({.attempt = "by_hand", .run_dir = run_dir}));
  const RunOnNode run{.run_dir = run_dir, .node = "", .host = record->image().host};
  const auto belongs_to = [&](pid_t process) {
    std::ifstream file(fmt::format("/proc/{}/stat", process));
    const std::string line((std::istreambuf_iterator<char>(file)), {});
    size_t at = line.rfind(')');
    for (int field = 2; field < 22; ++field) at = line.find(' ', at + 1);
    record->image().process = process;
    record->image().process_start = std::strtoll(line.c_str() + at, nullptr, 10);
    ASSERT_EQ(records_of(run).size(), 1u);
    ASSERT_EQ(process_state_of(records_of(run)[0]), ProcessState::kRuns);
  };
  const Rank by_hand("/another/run", "by_hand", 0), of_driver(run_dir, "by_hand", 0);
  belongs_to(by_hand.process());
  const auto left = leftovers(run, records_of(run), "now");
  EXPECT_EQ(std::count(left.begin(), left.end(), by_hand.process()), 0);
  belongs_to(of_driver.process());
  const auto of_run = leftovers(run, records_of(run), "now");
  EXPECT_EQ(std::count(of_run.begin(), of_run.end(), of_driver.process()), 1);
  EXPECT_EQ(kill_leftovers(run, records_of(run), "by_hand"), 0);
  EXPECT_GE(kill_leftovers(run, records_of(run), "now"), 1);
  for (int i = 0; i < kMostPauses && !leftovers(run, records_of(run), "now").empty(); ++i)
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  EXPECT_TRUE(leftovers(run, records_of(run), "now").empty());
  EXPECT_EQ(process_state_of(records_of(run)[0]), ProcessState::kGone);
  record->end_well();
  ::unsetenv("TRIREME_BLACK_BOXES");
}

TEST(KillProcess, spares_one_that_is_no_longer_meant) {
  const TemporaryFolder folder;
  const Rank rank(folder.path(), "now", 0);
  kill_process(rank.process(), [] { return false; });
  int status = 0;
  EXPECT_EQ(::waitpid(rank.process(), &status, WNOHANG), 0);
  kill_process(rank.process(), [] { return true; });
  EXPECT_EQ(::waitid(P_PID, static_cast<id_t>(rank.process()), nullptr, WEXITED | WNOWAIT), 0);
  kill_process(999'999'999, [] { return true; });
}

}  // namespace
}  // namespace tri
