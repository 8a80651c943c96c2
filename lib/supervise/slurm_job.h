// Access to a Slurm batch job through scontrol, squeue, sinfo and srun.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "io/checkpoint/run_lock.h"

namespace tri {

// Returns a field of the output of `scontrol show job --oneliner`, or "" if it is absent.
std::string_view job_field(std::string_view job, std::string_view name);
// Returns seconds since 1970 for Slurm's "2026-01-31T23:59:59", or 0 if it is not a time.
double slurm_time(std::string_view text);

enum class JobState {
  kRunning,
  kRequeued,   // Slurm or a user has requeued it: it belongs to a later start
  kTimedOut,   // it is being ended at its time limit
  kCancelled,  // it is being ended for good
  kNoRequeue,  // it runs, and its user has disabled requeueing
  kUnknown,    // slurmctld does not respond
};
JobState job_state_of(std::string_view job, int restart);

// The job to which this process belongs. Every call may take seconds.
class SlurmJob {
 public:
  struct Start {
    BatchStart batch;  // job and restart
    std::string node_list, partition;
    int num_nodes = 1;
  };
  explicit SlurmJob(Start start) : start_(std::move(start)) {}
  const Start& start() const { return start_; }

  static bool has_commands();  // false: this process finds no scontrol, for example in a container's image

  // Repeats the query for `timeout` seconds while slurmctld does not respond, and logs that.
  JobState state(double timeout) const;
  double time(std::string_view field) const;  // SubmitTime, StartTime or EndTime; 0: unknown
  std::optional<std::string> comment() const;
  bool set_comment(const std::string& comment) const;

  // Whether each of the job's nodes can start a task: Slurm itself notices a dead node minutes later. Takes up to 60 s.
  bool nodes_answer() const;
  bool has_node_out_of_service() const;  // DOWN or FAIL in Slurm
  bool requeue() const;

  // Returns the nodes that the job excludes.
  std::vector<std::string> excluded() const;
  // Works only while the job is pending: just after its requeue and before its next start.
  bool set_excluded(const std::vector<std::string>& nodes) const;
  // Whether the partition has enough nodes without these.
  bool can_spare(const std::vector<std::string>& nodes) const;
  bool are_out_of_service(const std::vector<std::string>& nodes) const;

 private:
  Start start_;
};

// Returns the state of a job by its number, such as "COMPLETING", or "" if Slurm no longer knows it or does not
// respond.
std::string queue_state(const std::string& job);
std::vector<std::string> host_names(const std::string& node_list);  // "node[1-2]" -> node1, node2; none: Slurm fails

// The state of a job whose batch script may be gone, as seen by an agent on another of its nodes.
enum class OrphanState {
  kOver,           // it has ended, or was requeued already
  kBatchHostLost,  // it runs, but Slurm has removed the node of its batch script
  kUnknown,        // it runs, or Slurm does not respond
};
// Parses the output of `scontrol show job --oneliner`. `nodes`: the names of the job's nodes, one per line.
OrphanState orphan_state_of(std::string_view job, std::string_view nodes, int restart);
// Queries Slurm, which may take some seconds.
OrphanState orphan_state(const std::string& job, int restart);
// Return the seconds until an agent's first query of Slurm, and between two queries, in a job with this many nodes.
// Together its agents query twice a second on average, spread at random. `chance`: in [0, 1).
double first_question(int num_nodes, double chance);
double next_question(int num_nodes, double chance);
void put_back(const std::string& job);  // scontrol requeue

}  // namespace tri
