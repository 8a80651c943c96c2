// The folder of a synthetic run of any length and size, with restarts, lost steps and a slow rank, from a seed.
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
  int x = 1;               // ranks of another axis, the slowest one; above 1 the grid lists it
  int restarts = 2;        // evenly spread over the run; each loses steps
  int64_t lost_steps = 7;  // per restart
  int64_t checkpoint_every = 50, evaluate_every = 40;
  int64_t windows = 8;                 // of ranks.h5; 0: no such file
  int slow_rank = 5;                   // slower by 20 % in the second half; -1: none
  int expert_layers = 0, experts = 0;  // of the layers; experts 0: the model is dense. The last expert gets no rows,
                                       // and the first one of the last layer ever more
  double peak_lr = 3e-4;
  bool hang = false;  // there is a dump: rank 5 of 8 has stopped, in a job of pp 2 x dp 2 x tp 2
  uint64_t seed = 1;
};

inline constexpr int kStoppedRank = 5;
// Returns the records of a job of pp 2 x dp 2 x tp 2 in which that rank has stopped in the middle.
std::vector<RankRecord> records_of_stopped_job();

RankGrid grid_of(const SyntheticRun& run);
// Creates `dir` and its files. Throws Fatal if they cannot be written.
void write_synthetic_run(const std::string& dir, const SyntheticRun& run);

}  // namespace tri
