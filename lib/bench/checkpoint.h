// `trireme bench checkpoint`: what saving and loading cost, each compared with the simplest way to move the same bytes
// on the same machine: a copy, a write with fsync, a read.
#pragma once

#include <string>
#include <vector>

#include "lib/comm/job/job.h"
#include "lib/config/config.h"
#include "lib/parallel/mesh.h"

namespace tri {

struct CheckpointBench {
  std::string dir;                         // a temporary folder is created in it; "": checkpoint.dir's parent
  int64_t most_bytes = int64_t{64} << 30;  // of a rank's state: a larger one is rejected; every preset has less
  int rounds = 5;                          // of each comparison; the median counts
  bool stall_only = false;                 // only the snapshot and the steps' waits for it: a third of the time
};

// One measurement and its reference, alternating. Seconds are the slowest rank's, medians over the rounds.
struct CheckpointRow {
  std::string name, floor;  // the operation, and its reference
  int64_t bytes = 0;        // of all ranks
  double seconds = 0, floor_seconds = 0;
  double speed = 0;  // median over the rounds of floor / measured: 1 is as fast as the floor
};

struct CheckpointBenchResult {
  int ranks = 1;
  int64_t bytes = 0;          // of the checkpoint
  bool cold = true;           // data was read from storage, not from the page cache
  double step_seconds = 0;    // without a checkpoint
  double stall_seconds = 0;   // additional time of a step before which a checkpoint begins: median of differences
  double beside_seconds = 0;  // additional time of all steps until it was published, including that one
  double copy_seconds = 0;    // bytes / (host copy bandwidth), the floor of the stall
  std::vector<CheckpointRow> rows;
};

// Collective; the result is rank 0's. Fails if there is no space, the state is too large, or storage fails. `config`
// must be resolved.
Result<CheckpointBenchResult> bench_checkpoint(const Config& config, const Mesh& mesh, Job& job, Device& device,
                                               const CheckpointBench& bench);

}  // namespace tri
