// A batch job of Slurm's, through scontrol, squeue, sinfo and srun.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "io/checkpoint/run_lock.h"

namespace tri {

// A field of what `scontrol show job --oneliner` prints; "": it has no such field.
std::string_view job_field(std::string_view job, std::string_view name);
// Seconds since 1970 of Slurm's "2026-01-31T23:59:59"; 0: it is no such time.
double slurm_time(std::string_view text);

enum class JobState {
  kRunning,
  kRequeued,   // Slurm or a person has requeued it: it belongs to a later start
  kTimedOut,   // it is being ended at its time limit
  kCancelled,  // it is being ended for good
  kNoRequeue,  // it runs, and its owner has forbidden a requeue
  kUnknown,    // slurmctld does not answer
};
JobState job_state_of(std::string_view job, int restart);

// The job that this process belongs to. Every call may take seconds.
class SlurmJob {
 public:
  struct Start {
    BatchStart batch;  // job and restart
    std::string node_list, partition;
    int num_nodes = 1;
  };
  explicit SlurmJob(Start start) : start_(std::move(start)) {}
  const Start& start() const { return start_; }

  static bool has_commands();  // false: this process finds no scontrol, as in a container's image

  // Repeats the query for `timeout` seconds while slurmctld does not answer, and logs that.
  JobState state(double timeout) const;
  double time(std::string_view field) const;  // SubmitTime, StartTime or EndTime; 0: not known
  std::optional<std::string> comment() const;
  bool set_comment(const std::string& comment) const;

  // Whether each of the job's nodes starts a task: Slurm itself notices a dead node minutes later. Takes up to 60 s.
  bool nodes_answer() const;
  bool has_node_out_of_service() const;  // DOWN or FAIL, which Slurm knows about
  bool requeue() const;

  // The nodes that the job excludes.
  std::vector<std::string> excluded() const;
  // Possible while the job is pending: just after its requeue, and before its next start.
  bool set_excluded(const std::vector<std::string>& nodes) const;
  // Whether the partition has enough nodes without these.
  bool can_spare(const std::vector<std::string>& nodes) const;
  bool are_out_of_service(const std::vector<std::string>& nodes) const;

 private:
  Start start_;
};

// The state of any job by its number, such as "COMPLETING"; "": Slurm does not know it any more, or does not answer.
std::string queue_state(const std::string& job);
std::vector<std::string> host_names(const std::string& node_list);  // "node[1-2]" -> node1, node2; none: Slurm fails

// A job whose batch script may be gone, as an agent on another of its nodes sees it.
enum class OrphanState {
  kOver,           // it has ended, or was put back already
  kBatchHostLost,  // it runs, and Slurm has taken the node of its batch script away from it
  kUnknown,        // it runs, or Slurm does not answer
};
// From what `scontrol show job --oneliner` prints, and `nodes`, the names of its nodes, a line each.
OrphanState orphan_state_of(std::string_view job, std::string_view nodes, int restart);
// Asks Slurm, which may take it some seconds.
OrphanState orphan_state(const std::string& job, int restart);
// Seconds until an agent asks Slurm for the first time, and from one question to the next, in a job of so many nodes:
// together its agents ask twice a second on average, and never each within the same second. `chance`: in [0, 1).
double first_question(int num_nodes, double chance);
double next_question(int num_nodes, double chance);
void put_back(const std::string& job);  // scontrol requeue

}  // namespace tri
