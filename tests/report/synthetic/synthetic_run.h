// The folder of a run that never was: of any length and size, with restarts, lost steps, a slow rank. Seeded.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "io/flight_recorder/record.h"

namespace tri {

struct SyntheticRun {
  std::string name = "synthetic";
  int64_t steps = 400;
  int pp = 2, dp = 2, tp = 2;
  int restarts = 2;        // evenly over the run; each loses steps
  int64_t lost_steps = 7;  // by each
  int64_t checkpoint_every = 50, evaluate_every = 40;
  int64_t windows = 8;  // of ranks.h5; 0: there is no such file
  int slow_rank = 5;    // by 20 % in the second half; -1: none
  double peak_lr = 3e-4;
  bool hang = false;  // a dump is there: rank 5 of pp 2 x dp 2 x tp 2 has stopped
  uint64_t seed = 1;
};

inline constexpr int kStoppedRank = 5;
// Records of a job of pp 2 x dp 2 x tp 2 of which that rank has stopped in its middle.
std::vector<RankRecord> records_of_stopped_job();

// Makes `dir` and its files. Throws Fatal where they can't be written.
void write_synthetic_run(const std::string& dir, const SyntheticRun& run);

}  // namespace tri
