// The processes of a run on this node, and their end. A process belongs to an attempt when its environment says so,
// from its first moment on; or when its flight recorder does. Of a node it is when SLURMD_NODENAME says so; without it,
// where no other node's agent of the run is on this machine.
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

// In the environment of every rank, set by the driver.
inline constexpr const char* kAttemptVariable = "TRIREME_ATTEMPT";        // the attempt's name
inline constexpr const char* kSupervisedVariable = "TRIREME_SUPERVISED";  // run.dir, absolute

struct RunOnNode {
  std::string run_dir;  // absolute
  std::string node;     // SLURMD_NODENAME; "": all processes of this machine are of this node
  std::string host;     // host_name()
  std::string
      program;  // file name of the ranks' executable: other processes, such as a container's start, do not count
};

// The flight recorders of the run on this node: one reading serves all that follows.
std::vector<RankRecord> records_of(const RunOnNode& run);

// Ranks of the attempt that have a flight recorder here.
std::vector<RankSight> sighted_ranks(std::span<const RankRecord> recorders, const std::string& attempt);

// Its ranks that have none yet: they are still before MPI's start, in it, or at the config. What a rank has started
// itself is no rank.
std::vector<RankSight> ranks_without_record(const RunOnNode& run, std::span<const RankRecord> recorders,
                                            const std::string& attempt);

// The first of its ranks here that has failed by itself; one whose communication failed only where no other has. Of a
// rank that was killed nothing is known.
std::optional<FailureSight> first_failure(std::span<const RankRecord> recorders, const std::string& attempt);

// Whether this node sees the event log; false also where its storage does not answer within a second.
bool sees_run_folder(const std::string& run_dir);

// Processes of the run's supervised attempts other than `attempt` that live, or are stopped. Zombies have ended. Ranks
// that no driver has started, as of `trireme train` in a shell, are none of them.
std::vector<pid_t> leftovers(const RunOnNode& run, std::span<const RankRecord> recorders, const std::string& attempt);
// Sends them SIGKILL; returns how many there were.
int kill_leftovers(const RunOnNode& run, std::span<const RankRecord> recorders, const std::string& attempt);

// Sends SIGKILL to other agents of the run on this node, of whatever driver: `program` supervise --agent `run_dir`.
void kill_earlier_agents(const std::string& program, const std::string& run_dir, const std::string& node);

// Sends SIGKILL to a process of which `is_meant` holds while its number can't pass to another process.
void kill_process(pid_t process, const std::function<bool()>& is_meant);

// The newest lines of the attempt's logs, from its flight recorders: those that hold one of the keywords.
std::vector<std::string> alarming_lines(std::span<const RankRecord> recorders, const std::string& attempt);
bool is_alarming(std::string_view line);

}  // namespace tri
