// Whether slurmd, which starts job steps on this node, is running: a node without it keeps its processes but starts no
// new ones, which srun reports only after ten seconds or more.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <string>

namespace tri {

class SlurmDaemon {
 public:
  // `node`: SLURMD_NODENAME; "": this is no job of Slurm's. `proc`: where processes are seen.
  explicit SlurmDaemon(std::string node, std::string proc = "/proc");

  // Returns the seconds since it was found gone; 0: it lives, or was never visible. Called once a second; only every
  // tenth call searches for an unknown one.
  double gone_seconds();

 private:
  pid_t find() const;  // -1: none, or it is not known which

  std::string node_, proc_;
  pid_t process_ = -1;   // -1: it could never be seen
  int num_unknown_ = 0;  // calls without knowing it
  bool gone_ = false;
  std::chrono::steady_clock::time_point since_;
};

}  // namespace tri
