#include "lib/supervise/process_launcher.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <thread>

#include "lib/fault/stop_signals.h"
#include "tests/io/forked.h"

namespace {

// Holds processes that are about to execute a command (tests/CMakeLists.txt wraps execvp).
struct Gate {
  int reached[2] = {-1, -1};  // they write their number here, and "x" once they continue
  int opens[2] = {-1, -1};    // and wait for a byte here
};
Gate* g_gate = nullptr;

}  // namespace

// NOLINTBEGIN: the linker's names
extern "C" int __real_execvp(const char* file, char* const argv[]);
extern "C" int __wrap_execvp(const char* file, char* const argv[]) {
  if (g_gate != nullptr) {
    const pid_t self = ::getpid();
    char byte = 0;
    if (::write(g_gate->reached[1], &self, sizeof self) != sizeof self) ::_exit(2);
    while (::read(g_gate->opens[0], &byte, 1) < 0 && errno == EINTR) {
    }
    if (::write(g_gate->reached[1], "x", 1) != 1) ::_exit(2);
  }
  return __real_execvp(file, argv);
}
// NOLINTEND

namespace tri {
namespace {

constexpr std::chrono::seconds kTimeout{60};

// Returns whether `descriptor` has input or has reached its end.
bool has_input(int descriptor) {
  pollfd input{descriptor, POLLIN, 0};
  return ::poll(&input, 1, std::chrono::milliseconds(kTimeout).count()) == 1;
}

// Returns a launcher like the driver's, for ranks that sleep.
ProcessLauncher sleeping_ranks() {
  return ProcessLauncher({.commands = own_commands("", ""),
                          .agent = {},
                          .ranks = {"sleep", "1000"},
                          .run_dir = "run",
                          .job = "",
                          .secret = {},
                          .marks = {}});
}

// As from Slurm to all processes of the job: the driver also gets the signal and signals its ranks to drain.
TEST(ProcessLauncher, a_stop_signal_before_the_command_runs_arrives_when_it_does) {
  const std::string said = in_child([]() -> std::string {
    Gate gate;
    if (::pipe2(gate.reached, O_CLOEXEC) != 0 || ::pipe2(gate.opens, O_CLOEXEC) != 0) return "no pipes";
    g_gate = &gate;
    const StopSignals signals;
    ProcessLauncher launcher = sleeping_ranks();
    launcher.start_ranks({.attempt = "a", .number = 1, .nodes = {"node1"}});
    pid_t child = 0;
    if (!has_input(gate.reached[0]) || ::read(gate.reached[0], &child, sizeof child) != sizeof child)
      return "the child has not come to its command";
    ::kill(child, SIGUSR1);
    launcher.drain_ranks();
    if (launcher.ranks_status()) return "the child has ended";
    char byte = 0;
    if (::write(gate.opens[1], "x", 1) != 1 || !has_input(gate.reached[0]) || ::read(gate.reached[0], &byte, 1) != 1)
      return "the signal has ended the child before its command";
    std::optional<int> status;
    for (const auto until = std::chrono::steady_clock::now() + kTimeout;
         !(status = launcher.ranks_status()) && std::chrono::steady_clock::now() < until;)
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    return status ? fmt::format("status {}", *status) : "the signal is lost";
  });
  EXPECT_EQ(said, fmt::format("status {}", 128 + SIGUSR1));
}

TEST(ProcessLauncher, a_child_whose_driver_has_died_executes_no_command) {
#ifdef __SANITIZE_THREAD__
  GTEST_SKIP() << "ThreadSanitizer runs no signal handler in a child of a process that has further threads";
#endif
  Gate gate;
  int life[2];
  ASSERT_EQ(::pipe2(gate.reached, O_CLOEXEC), 0);
  ASSERT_EQ(::pipe2(gate.opens, O_CLOEXEC), 0);
  ASSERT_EQ(::pipe(life), 0);  // otherwise the command would hold it open
  const pid_t driver = ::fork();
  ASSERT_GE(driver, 0);
  if (driver == 0) {
    g_gate = &gate;
    const StopSignals signals;
    ProcessLauncher launcher = sleeping_ranks();
    launcher.start_ranks({.attempt = "a", .number = 1, .nodes = {"node1"}});
    for (;;) ::pause();
  }
  ::close(life[1]);
  pid_t child = 0;
  const bool came = has_input(gate.reached[0]) && ::read(gate.reached[0], &child, sizeof child) == sizeof child;
  ::kill(driver, SIGKILL);
  ::waitpid(driver, nullptr, 0);
  EXPECT_TRUE(came);
  EXPECT_EQ(::write(gate.opens[1], "x", 1), 1);
  const bool ended = has_input(life[0]);
  EXPECT_TRUE(ended);
  if (came && !ended) ::kill(child, SIGKILL);
  for (const int descriptor : {life[0], gate.reached[0], gate.reached[1], gate.opens[0], gate.opens[1]})
    ::close(descriptor);
}

using Words = LaunchCommands::Words;

bool has(const Words& words, const std::string& word) {
  return std::find(words.begin(), words.end(), word) != words.end();
}

TEST(LaunchCommands, own_commands_name_the_nodes_if_requested) {
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
  EXPECT_EQ(ranks.back(), "--mpi=none");  // the user's options come last and win
}

}  // namespace
}  // namespace tri
