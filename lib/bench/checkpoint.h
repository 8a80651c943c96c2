// `trireme bench checkpoint`: what saving and loading cost, each alongside the plainest way to move the same bytes on
// the same machine: a copy, a write with fsync, a read.
#pragma once

#include <string>
#include <vector>

#include "lib/comm/job.h"
#include "lib/config/config.h"
#include "lib/parallel/mesh.h"

namespace tri {

struct CheckpointBench {
  std::string dir;                         // a folder is made in it, and removed; "": checkpoint.dir's parent
  int64_t most_bytes = int64_t{64} << 30;  // of a rank's state: a larger one is refused; every preset has less
  int rounds = 5;                          // of each comparison; the middle one counts
  bool stall_only = false;                 // the snapshot and what steps wait for it: a third of the time
};

// One measurement alongside its floor, the two in turns. Seconds are the slowest rank's, medians over the rounds.
struct CheckpointRow {
  std::string name, floor;  // what was done, and what it is compared with
  int64_t bytes = 0;        // of all ranks
  double seconds = 0, floor_seconds = 0;
  double speed = 0;  // median over the rounds of floor / measured: 1 is as fast as the floor
};

struct CheckpointBenchResult {
  int ranks = 1;
  int64_t bytes = 0;          // of the checkpoint
  bool cold = true;           // what was read came from storage, not from the page cache
  double step_seconds = 0;    // of a step without a checkpoint
  double stall_seconds = 0;   // how much longer a step takes before which a checkpoint begins: median of differences
  double beside_seconds = 0;  // how much longer all steps took until it was published, that one included
  double copy_seconds = 0;    // bytes / (host copy bandwidth), the floor of the stall
  std::vector<CheckpointRow> rows;
};

// Collective; the result is rank 0's. Error: no space, too large a state, storage that fails. `config` is resolved.
Result<CheckpointBenchResult> bench_checkpoint(const Config& config, const Mesh& mesh, Job& job, Device& device,
                                               const CheckpointBench& bench);

}  // namespace tri
