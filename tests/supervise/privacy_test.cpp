// Who gets to know the token of the job: its agents, by their environment, and nobody else.
#include <gtest/gtest.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <thread>

#include "lib/supervise/agent.h"
#include "lib/supervise/process_launcher.h"
#include "tests/io/temporary_folder.h"

namespace tri {
namespace {

std::string contents(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

// A shell that writes its environment and its command line into two files; what follows are words that it ignores.
std::vector<std::string> tell(const std::string& path) {
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
      {.commands = {.agents = [&](const auto&) { return std::vector<LaunchCommands::Words>{tell(agents)}; },
                    .ranks = [](const auto&) { return std::vector<std::string>(); }},
       .agent = {"agent"},
       .ranks = tell(ranks),
       .run_dir = folder / "run",
       .job = "job",
       .secret = {std::string(kTokenVariable) + "=" + token}});
  launcher.start_agents({"node0"});
  launcher.start_ranks({.attempt = "attempt", .number = 1, .nodes = {"node0"}});
  ASSERT_TRUE(comes(agents + ".env"));
  ASSERT_TRUE(comes(ranks + ".env"));
  EXPECT_NE(contents(agents + ".env").find(token), std::string::npos);
  EXPECT_EQ(contents(agents + ".cmd").find(token), std::string::npos) << "command lines are everybody's to read";
  EXPECT_NE(contents(ranks + ".env").find("TRIREME_ATTEMPT=attempt"), std::string::npos);
  EXPECT_EQ(contents(ranks + ".env").find(token), std::string::npos);
  EXPECT_EQ(contents(ranks + ".cmd").find(token), std::string::npos);
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

}  // namespace
}  // namespace tri
