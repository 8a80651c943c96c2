// A job of Slurm's whose batch script may be gone, as an agent on another of its nodes sees it.
#pragma once

#include <string>
#include <string_view>

namespace tri {

enum class OrphanState {
  kOver,           // it has ended, or was put back already
  kBatchHostLost,  // it runs, and Slurm has taken the node of its batch script away from it
  kUnknown,        // it runs, or Slurm does not answer
};
// From what `scontrol show job --oneliner` prints, and `nodes`, the names of its nodes, a line each.
OrphanState orphan_state_of(std::string_view job, std::string_view nodes, int restart);
// Queries Slurm, which may take some seconds.
OrphanState orphan_state(const std::string& job, int restart);
// Returns the seconds until an agent queries Slurm for the first time, and from one query to the next, in a job of so
// many nodes: together its agents query twice a second on average, and never all within the same second. `chance`: in
// [0, 1).
double first_question(int num_nodes, double chance);
double next_question(int num_nodes, double chance);
void put_back(const std::string& job);  // scontrol requeue

}  // namespace tri
