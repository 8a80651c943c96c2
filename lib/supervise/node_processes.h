// Finds and ends the processes of a run on this node. A process belongs to an attempt if its environment says so, from
// its start on, or if its flight recorder does. It belongs to a node if SLURMD_NODENAME says so or, without that, if no
// other node's agent of the run is on this machine.
#pragma once

#include <sys/types.h>

#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "lib/supervise/agent_messages.h"

namespace tri {

// Set by the driver in the environment of every rank.
inline constexpr const char* kAttemptVariable = "TRIREME_ATTEMPT";        // the attempt's name
inline constexpr const char* kSupervisedVariable = "TRIREME_SUPERVISED";  // run.dir, absolute

struct RunOnNode {
  std::string run_dir;  // absolute
  std::string node;     // SLURMD_NODENAME; "": all processes of this machine belong to this node
  std::string host;     // host_name()
  std::string
      program;  // file name of the ranks' executable: other processes, such as a container's start, do not count
};

// Returns the flight recorders of the run on this node; the functions below share one read.
std::vector<RankRecord> records_of(const RunOnNode& run);

// Returns the ranks of the attempt that have a flight recorder here.
std::vector<RankSight> sighted_ranks(std::span<const RankRecord> recorders, const std::string& attempt);

// Returns its ranks without a flight recorder, which have not passed MPI's start and the config yet. Child processes of
// a rank are not ranks.
std::vector<RankSight> ranks_without_record(const RunOnNode& run, std::span<const RankRecord> recorders,
                                            const std::string& attempt);

// Returns the first of its ranks here that failed by itself; one with a communication failure only if no other has
// failed. A killed rank leaves no report.
std::optional<FailureSight> first_failure(std::span<const RankRecord> recorders, const std::string& attempt);

// Whether this node sees the event log; false if its storage does not respond within a second.
bool sees_run_folder(const std::string& run_dir);

// Returns processes of the run's supervised attempts other than `attempt` that are alive or stopped, but no zombies.
// Excludes ranks that no driver has started, such as those of `trireme train` in a shell.
std::vector<pid_t> leftovers(const RunOnNode& run, std::span<const RankRecord> recorders, const std::string& attempt);
// Sends them SIGKILL. Returns their number.
int kill_leftovers(const RunOnNode& run, std::span<const RankRecord> recorders, const std::string& attempt);

// Sends SIGKILL to other agents of the run on this node, whichever driver started them: `program` supervise --agent
// `run_dir`.
void kill_earlier_agents(const std::string& program, const std::string& run_dir, const std::string& node);

// Sends SIGKILL to a process if `is_meant` is true while its id can't be reused.
void kill_process(pid_t process, const std::function<bool()>& is_meant);

// Returns the newest lines of the attempt's logs in its flight recorders that contain one of the keywords.
std::vector<std::string> alarming_lines(std::span<const RankRecord> recorders, const std::string& attempt);
bool is_alarming(std::string_view line);

}  // namespace tri
