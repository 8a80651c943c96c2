// Detects whether slurmd, which starts job steps on this node, is running. Without it a node keeps its processes but
// starts no new ones, which srun reports only after ten seconds or more.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <string>

namespace tri {

class SlurmDaemon {
 public:
  // `node`: SLURMD_NODENAME; "": not a Slurm job. `proc`: where processes are listed.
  explicit SlurmDaemon(std::string node, std::string proc = "/proc");

  // Returns the seconds since slurmd was found gone, or 0 if it runs or was never visible. Call once a second; only
  // every tenth call searches for an unknown one.
  double gone_seconds();

 private:
  pid_t find() const;  // -1: none, or several candidates

  std::string node_, proc_;
  pid_t process_ = -1;   // -1: never seen
  int num_unknown_ = 0;  // calls since it is unknown
  bool gone_ = false;
  std::chrono::steady_clock::time_point since_;
};

}  // namespace tri
