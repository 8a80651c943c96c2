// A fast simulation of one pipeline ("column": the pp stages of one dp and tp rank), with the same plans and rules as
// lib/schedule/pipeline.h but without spans. If the stages are equal, it simulates only a few microbatches: once the
// pipeline is full, every pp microbatches take the same time. Folded pipelines are left to lib/schedule/pipeline.h.
#pragma once

#include <vector>

#include "lib/schedule/plan.h"

namespace tri {

// How transfers between stages relate to compute.
enum class StageTransfers {
  kConcurrent,  // Overlap::kOn: sends and receives overlap compute, each when its own two sides are ready
  kBlocked,     // Overlap::kOff: a send ends before the sender's next compute action starts
  // Megatron-LM's batched calls: compute runs in rounds (a forward and the backward after it in a plan of chunks, else
  // one action). A round's sends and the next round's receives are posted together when it ends, and all end before the
  // next round starts. As in Megatron-LM, plans of chunks need whole groups of microbatches for this; other plans are
  // timed as kBlocked.
  kCoupled,
};

struct ColumnCosts {
  Schedule schedule = Schedule::k1F1B;
  int stages = 1, chunks = 1, num_microbatches = 1;
  StageTransfers transfers = StageTransfers::kConcurrent;
  std::vector<double> forward, backward;  // (stages · chunks) seconds, by virtual stage
  std::vector<double> weight;             // the same of kWeight actions, if the schedule splits the backward pass
  double transfer = 0;                    // seconds of a message between neighbours
  // From which zb_v's plan is made (make_plan); empty: from the times above.
  std::vector<StageCost> plan = {};
};

// Seconds since the start of the first action.
struct ColumnTimes {
  double makespan = 0;
  std::vector<double> busy;           // (stages) time in compute actions
  std::vector<double> end;            // (stages) end of the last compute action
  std::vector<double> first_forward;  // (stages · chunks), by virtual stage: start of its first forward
  std::vector<double> last_backward;  // (stages · chunks): end of its last backward, or kWeight
};

// Simulates every microbatch.
ColumnTimes time_whole_column(const ColumnCosts& costs);

// Returns the same within rounding, but simulates only two to four groups of pp microbatches if they become periodic:
// virtual stages are equal except for the first and the last, which do more, and messages are shorter than a forward.
// If these two are about as slow, the makespan may differ by up to 0.1 %.
ColumnTimes time_column(const ColumnCosts& costs);

}  // namespace tri
