// Starts agents and ranks as child processes: with srun inside a Slurm allocation, with a user's command elsewhere.
#pragma once

#include <sys/types.h>

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "io/base/file.h"
#include "lib/supervise/supervisor.h"

namespace tri {

// The commands to call, as words; the agents' and the ranks' own commands are appended.
struct LaunchCommands {
  using Words = std::vector<std::string>;
  std::function<std::vector<Words>(const std::vector<std::string>& nodes)> agents;  // one or several commands
  std::function<Words(const std::vector<std::string>& nodes)> ranks;
  bool secret_on_input = false;  // agents also read their secret from standard input
};

struct SlurmShape {
  int ranks_per_node = 1, cpus_per_rank = 1;
  double straggler_seconds = 60;     // ranks may continue for this long after the first one has exited
  std::vector<std::string> options;  // additional srun options for the ranks
};
LaunchCommands slurm_commands(const SlurmShape& shape);
// Without Slurm: `ranks` starts the ranks ("mpirun -n 8"), `agent` starts the agent of a node ("ssh {node}"; "": as a
// process of this machine). Both are split at blanks; {node} is replaced by the node's name and {nodes} by all names,
// separated by commas. The command that starts an agent must pass on its environment or, like ssh, its standard input.
LaunchCommands own_commands(const std::string& ranks, const std::string& agent);

class ProcessLauncher : public Launcher {
 public:
  struct Setup {
    LaunchCommands commands;
    std::vector<std::string> agent;   // the agent's own command
    std::vector<std::string> ranks;   // a rank's own command
    std::string run_dir, job;         // absolute; the name of the job, for the run's lock
    std::vector<std::string> secret;  // "NAME=value" for the agents only
    std::vector<std::string> marks;   // ... for the ranks only
  };
  explicit ProcessLauncher(Setup setup) : setup_(std::move(setup)) {}
  ~ProcessLauncher() override;  // kills remaining processes

  void start_agents(const std::vector<std::string>& nodes) override;
  std::vector<std::string> failed_agents() override;
  void start_ranks(const RanksStart& start) override;
  std::optional<int> ranks_status() override;
  void drain_ranks() override;
  void end_ranks(End how) override;
  void reap();  // collects agents' launchers that have ended
  bool agents_left() const { return !agents_.empty(); }

 private:
  void pass_drain_on();

  Setup setup_;
  pid_t ranks_ = -1;
  Descriptor executes_;  // of the ranks' launcher: readable once the command runs
  bool drains_ = false;  // requested but not passed on yet
  std::optional<int> status_;
  struct AgentStart {
    pid_t process = -1;
    std::string node;  // "": several nodes
  };
  std::vector<AgentStart> agents_;
  int64_t agent_starts_ = 0;
  std::map<std::string, pid_t> newest_;  // by node
  std::vector<std::string> failed_;
};

}  // namespace tri
