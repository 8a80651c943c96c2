// Which processes get the job's token: only its agents, through their environment. Whose flight recorders an agent
// trusts.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <iterator>
#include <thread>

#include "io/flight_recorder/flight_recorder.h"
#include "lib/supervise/agent.h"
#include "lib/supervise/node_processes.h"
#include "lib/supervise/process_launcher.h"
#include "tests/io/temporary_folder.h"

namespace tri {
namespace {

// Returns a shell command that writes its environment and command line to two files; it ignores further words.
std::vector<std::string> record_environment(const std::string& path) {
  return {"sh", "-c", fmt::format("env >{0}.env.part; cat /proc/$$/cmdline >{0}.cmd; mv {0}.env.part {0}.env", path)};
}

bool comes(const std::string& path) {
  for (int i = 0; i < 2000 && !std::filesystem::exists(path); ++i)
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  return std::filesystem::exists(path);
}

TEST(Privacy, the_token_is_in_the_agents_environment_alone) {
  const TemporaryFolder folder;
  const std::string token = to_text(new_token()), agents = folder / "agents", ranks = folder / "ranks";
  ProcessLauncher launcher(
      {.commands = {
           .agents = [&](const auto&) { return std::vector<LaunchCommands::Words>{record_environment(agents)}; },
           .ranks = [](const auto&) { return std::vector<std::string>(); }},
       .agent = {"agent"},
       .ranks = record_environment(ranks),
       .run_dir = folder / "run",
       .job = "job",
       .secret = {std::string(kTokenVariable) + "=" + token}});
  launcher.start_agents({"node0"});
  launcher.start_ranks({.attempt = "attempt", .number = 1, .nodes = {"node0"}});
  ASSERT_TRUE(comes(agents + ".env"));
  ASSERT_TRUE(comes(ranks + ".env"));
  EXPECT_NE(read_all(agents + ".env").find(token), std::string::npos);
  EXPECT_EQ(read_all(agents + ".cmd").find(token), std::string::npos) << "all users can read command lines";
  EXPECT_NE(read_all(ranks + ".env").find("TRIREME_ATTEMPT=attempt"), std::string::npos);
  EXPECT_EQ(read_all(ranks + ".env").find(token), std::string::npos);
  EXPECT_EQ(read_all(ranks + ".cmd").find(token), std::string::npos);
}

// As with ssh, which passes on its input but not its environment.
TEST(Privacy, an_agent_without_its_environment_is_identified_by_its_input) {
  const TemporaryFolder folder;
  const std::string token = to_text(new_token()), agents = folder / "agents";
  LaunchCommands commands = own_commands("", "");
  ASSERT_TRUE(commands.secret_on_input);
  commands.agents = [&](const auto&) {
    return std::vector<LaunchCommands::Words>{
        {"env", "-i", "sh", "-c", fmt::format("cat >{0}.part; mv {0}.part {0}", agents)}};
  };
  ProcessLauncher launcher(
      {.commands = commands,
       .agent = {"agent"},
       .ranks = {},
       .run_dir = folder / "run",
       .job = "job",
       .secret = {std::string(kTokenVariable) + "=" + token, std::string(kDriverVariable) + "=1 a"}});
  launcher.start_agents({"node0"});
  ASSERT_TRUE(comes(agents));
  EXPECT_EQ(read_all(agents),
            fmt::format("{}={}\n{}=1 a\n{}=1\n", kTokenVariable, token, kDriverVariable, kStartVariable));

  ::unsetenv(kTokenVariable);
  ::unsetenv(kDriverVariable);
  const int before = ::dup(STDIN_FILENO), input_fd = ::open(agents.c_str(), O_RDONLY);
  ASSERT_EQ(::dup2(input_fd, STDIN_FILENO), STDIN_FILENO);
  const auto options = agent_options("/run", "/bin/true");
  ::dup2(before, STDIN_FILENO);
  ::close(before), ::close(input_fd);
  ASSERT_TRUE(options.ok());
  EXPECT_EQ(to_text(options.value().token), token);
  EXPECT_EQ(options.value().addresses, std::vector<std::string>{"a"});
  EXPECT_EQ(options.value().start, 1);
  EXPECT_EQ(std::getenv(kTokenVariable), nullptr);
  ::unsetenv(kDriverVariable);
  ::unsetenv(kStartVariable);
}

TEST(Privacy, an_agent_hides_it_from_what_it_starts) {
  ::setenv(kTokenVariable, to_text(new_token()).c_str(), 1);
  ::setenv(kDriverVariable, "4711 10.0.0.1 ::1", 1);
  const auto options = agent_options("/run", "/bin/true");
  ASSERT_TRUE(options.ok());
  EXPECT_EQ(options.value().port, 4711);
  EXPECT_EQ(options.value().addresses, (std::vector<std::string>{"10.0.0.1", "::1"}));
  EXPECT_EQ(std::getenv(kTokenVariable), nullptr);
  EXPECT_FALSE(agent_options("/run", "/bin/true").ok()) << "without one it is no agent";
  ::unsetenv(kDriverVariable);
}

// Otherwise another user's flight recorder could name any process of this user as left over from an attempt, and have
// it killed.
TEST(Privacy, flight_records_of_other_users_are_ignored) {
  if (::geteuid() != 0) GTEST_SKIP() << "only root can give a file to another user";
  const TemporaryFolder folder;
  ::setenv("TRIREME_BLACK_BOXES", folder.path().c_str(), 1);
  const auto recorder = value_or_throw(FlightRecorder::create({.attempt = "earlier", .run_dir = "/run"}));
  const RunOnNode run{.run_dir = "/run", .node = "", .host = recorder->image().host};
  ASSERT_EQ(records_of(run).size(), 1u);
  ASSERT_EQ(::chown(recorder->path().c_str(), 65534, 65534), 0);
  EXPECT_TRUE(records_of(run).empty());
  recorder->end_well();
  ::unsetenv("TRIREME_BLACK_BOXES");
}

}  // namespace
}  // namespace tri
