// Starts agents and ranks as child processes: by srun inside a Slurm allocation, by a command of the user's elsewhere.
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

// What is called, word by word; the words of the agents' and the ranks' own commands come behind it.
struct LaunchCommands {
  using Words = std::vector<std::string>;
  std::function<std::vector<Words>(const std::vector<std::string>& nodes)> agents;  // one command or several
  std::function<Words(const std::vector<std::string>& nodes)> ranks;
  bool secret_on_input = false;  // agents find their secret on the standard input as well
};

struct SlurmShape {
  int ranks_per_node = 1, cpus_per_rank = 1;
  double straggler_seconds = 60;     // ranks may outlive the first one that left by so much
  std::vector<std::string> options;  // more of srun, for the ranks
};
LaunchCommands slurm_commands(const SlurmShape& shape);
// Without Slurm: `ranks` starts the ranks ("mpirun -n 8"), `agent` the agent of a node ("ssh {node}"; "": as a process
// of this machine). Both are split at blanks; {node} and {nodes} become the node's name, and all names with commas.
// What starts an agent has to pass its environment on or, as ssh does, its standard input.
LaunchCommands own_commands(const std::string& ranks, const std::string& agent);

class ProcessLauncher : public Launcher {
 public:
  struct Setup {
    LaunchCommands commands;
    std::vector<std::string> agent;   // the agent's own command
    std::vector<std::string> ranks;   // a rank's
    std::string run_dir, job;         // absolute; the name of the job, for the run's lock
    std::vector<std::string> secret;  // "NAME=value" for the agents alone
    std::vector<std::string> marks;   // ... for the ranks alone
  };
  explicit ProcessLauncher(Setup setup) : setup_(std::move(setup)) {}
  ~ProcessLauncher() override;  // kills what is left

  void start_agents(const std::vector<std::string>& nodes) override;
  std::vector<std::string> failed_agents() override;
  void start_ranks(const RanksStart& start) override;
  std::optional<int> ranks_status() override;
  void drain_ranks() override;
  void end_ranks(End how) override;
  void reap();  // agents' launchers that have ended
  bool agents_left() const { return !agents_.empty(); }

 private:
  void pass_drain_on();

  Setup setup_;
  pid_t ranks_ = -1;
  Descriptor executes_;  // of the ranks' launcher: at its end once the command runs
  bool drains_ = false;  // requested, and not passed on yet
  std::optional<int> status_;
  struct AgentStart {
    pid_t process = -1;
    std::string node;  // "": several
  };
  std::vector<AgentStart> agents_;
  int64_t agent_starts_ = 0;
  std::map<std::string, pid_t> newest_;  // by node
  std::vector<std::string> failed_;
};

}  // namespace tri
