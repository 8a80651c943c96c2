// The simulator of a pipeline: runs all stages' plans on queues exactly as the executor does.
//
// A stage has one compute queue and four transfer queues (one each for RF, SF, RB, SB), each in strict order.
//   A transfer starts once both sides have reached it, and occupies both sides' queues until it ends.
//   An action waits for other actions of its stage as their shared buffers require: lib/schedule/buffer_rules.h.
// The order of each queue is fixed, so every start is the latest end of its dependencies: times follow from the plans
// alone, and an action that can never start is a deadlock.
#pragma once

#include <string>
#include <vector>

#include "lib/schedule/plan.h"

namespace tri {

// Times of one virtual stage, all in the same unit.
struct StageCost {
  double forward = 1;
  double backward = 2;
  double transfer = 0;  // to send one result: its output, or the gradient of its input
  double weight = 0;    // of a kWeight action; then `backward` is without it
};

// One action that has run. A transfer has a span on both sides, with equal times.
struct PipelineSpan {
  int stage;
  Action action;
  double start, end;
};

struct PipelineRun {
  double makespan = 0;
  std::vector<double> busy;                        // (p) time in compute actions
  double bubble = 0;                               // idle time of all stages / busy time of all stages
  std::vector<std::vector<int>> peak_activations;  // (p, chunks) max_in_flight of the plans
  std::vector<PipelineSpan> spans;                 // by stage, then by start
  // Empty if every plan ran to its end. Otherwise one line per blocked queue with what it waits for; the times then
  // describe the part that ran.
  std::string deadlock;
};

// Returns the cost of a virtual stage in units of its forward, where the other parts take as long.
inline StageCost equal_parts(Schedule schedule) {
  return splits_backward(schedule) ? StageCost{.forward = 1, .backward = 1, .weight = 1} : StageCost{};
}

// Returns the plans with transfers of pp ranks 0 .. pp_size-1.
std::vector<Plan> plans_of_all_stages(Schedule schedule, int pp_size, int num_microbatches, int chunks);

// Simulates `plans` (p), which include transfers. `costs` (p * chunks) is indexed by virtual stage.
PipelineRun simulate_pipeline(const std::vector<Plan>& plans, int chunks, const std::vector<StageCost>& costs,
                              Overlap overlap);

}  // namespace tri
