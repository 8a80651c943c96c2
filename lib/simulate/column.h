// One pipeline ("column": the pp stages of one dp and tp rank) in simulated time, fast: the same plans and the same
// rules as lib/simulate/pipeline.h, without spans and without generality. Where the stages are equal, microbatches
// beyond a few are not walked through: once the pipeline is full every pp of them take the same time.
#pragma once

#include <vector>

#include "lib/schedule/plan.h"

namespace tri {

// How transfers between stages stand to compute.
enum class StageTransfers {
  kConcurrent,  // Overlap::kOn: sends and receives overlap compute, each when its own two sides are ready
  kBlocked,     // Overlap::kOff: a send is over before the sender's next compute action starts
  // Megatron-LM's batched calls: compute runs in rounds (of a forward and the backward after it in a plan of chunks,
  // else of one action). A round's sends and the next round's receives are posted together when it ends, and all are
  // over before the next one starts. Plans of chunks need whole groups of microbatches for it, as in Megatron-LM;
  // others are timed as kBlocked.
  kCoupled,
};

struct ColumnCosts {
  Schedule schedule = Schedule::k1F1B;
  int stages = 1, chunks = 1, num_microbatches = 1;
  StageTransfers transfers = StageTransfers::kConcurrent;
  std::vector<double> forward, backward;  // (stages · chunks) seconds, by virtual stage
  double transfer = 0;                    // seconds of a message between neighbours
};

// Seconds from the first action's start.
struct ColumnTimes {
  double makespan = 0;
  std::vector<double> busy;           // (stages) in compute actions
  std::vector<double> end;            // (stages) of the last compute action
  std::vector<double> first_forward;  // (stages · chunks), by virtual stage: start of its first forward
  std::vector<double> last_backward;  // (stages · chunks): end of its last backward
};

// Walks through every microbatch.
ColumnTimes time_whole_column(const ColumnCosts& costs);

// The same, within rounding, and in the time of two groups of pp microbatches where these have found their rhythm:
// virtual stages are equal except for the first and the last, which do more, and messages are shorter than a forward.
ColumnTimes time_column(const ColumnCosts& costs);

}  // namespace tri
