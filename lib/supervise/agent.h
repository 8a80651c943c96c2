// The agent of a node: reports the state of the node and its ranks to the driver once a second, and executes the
// driver's orders. It needs no privileges, writes no files, and exits when the driver has been gone for long. It
// requeues a Slurm job whose batch host is lost.
#pragma once

#include <string>
#include <vector>

#include "lib/supervise/frames.h"

namespace tri {

// Set in the agents' environment, which only their user may read, or sent to their standard input.
inline constexpr const char* kTokenVariable = "TRIREME_TOKEN";
inline constexpr const char* kDriverVariable = "TRIREME_DRIVER";      // "PORT ADDRESS ADDRESS..."
inline constexpr const char* kStartVariable = "TRIREME_AGENT_START";  // number of the driver's start of agents, from 1

struct AgentOptions {
  std::string run_dir;  // absolute
  std::string node;     // the launcher's name for it
  std::string program;  // this executable, which runs the doctor
  JobToken token;
  int port = 0;
  std::vector<std::string> addresses;  // of the driver's machine; the first that answers is used
  double gone_seconds = 60;            // seconds without a message after which the driver counts as gone
  int64_t start = 0;                   // number of the driver's start of agents to which this one belongs
  int num_nodes = 1;                   // of the job
  std::string job;                     // its Slurm job id; "": not a Slurm job
  int restart = 0;                     // ... how often it has been restarted
};
// Reads the options from the environment, or standard input, and arguments. Fails with kUsage if the token or the
// driver's address is missing.
Result<AgentOptions> agent_options(const std::string& run_dir, const std::string& program);

// Ends earlier agents of the run on this node. Returns 0 when it was ordered to exit, or 5 when the driver is gone.
int run_agent(const AgentOptions& options);

}  // namespace tri
