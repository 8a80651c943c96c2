// The simulator of a pipeline: runs all stages' plans on queues exactly as the executor does.
//
// A stage has one compute queue and for each route four transfer queues (RF, SF, RB, SB), each in strict order.
//   A transfer starts once both sides have reached it, and occupies both sides' queues until it ends.
//   An action waits for other actions of its stage as their shared buffers require: lib/schedule/buffer_rules.h.
// The order of each queue is fixed, so every start is the latest end of its dependencies: times follow from the plans
// alone, and an action that can never start is a deadlock.
#pragma once

#include <string>
#include <vector>

#include "lib/schedule/plan.h"

namespace tri {

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

// Returns the plans with transfers of pp ranks 0 .. pp_size-1. `costs`: as of make_plan.
std::vector<Plan> plans_of_all_stages(Schedule schedule, int pp_size, int num_microbatches, int chunks,
                                      const std::vector<StageCost>& costs = {});

// In which order a pipeline's ranks hold its virtual stages (lib/schedule/plan.h).
enum class StagePlacement { kUp, kFolded };
inline StagePlacement placement_of(Schedule schedule) {
  return folds(schedule) ? StagePlacement::kFolded : StagePlacement::kUp;
}

// Simulates `plans` (p), which include transfers. `costs` (p * chunks) is indexed by virtual stage.
PipelineRun simulate_pipeline(const std::vector<Plan>& plans, int chunks, const std::vector<StageCost>& costs,
                              Overlap overlap, StagePlacement placement = StagePlacement::kUp);

}  // namespace tri
