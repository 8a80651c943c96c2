// What the pipeline schedules gain for a workload, each with the recompute level of the workload and in equal memory.
#pragma once

#include <string>
#include <vector>

#include "lib/simulate/step_memory.h"
#include "lib/simulate/step_model.h"

namespace tri {

struct ScheduleRow {
  Schedule schedule = Schedule::k1F1B;
  int chunks = 1;
  Recompute recompute = Recompute::kNone;
  std::vector<int> layers_per_chunk = {};  // by virtual stage; empty: divided evenly
  bool equal_memory = false;               // with the least recompute that fits into the memory of the first row
  bool fits = true;                        // with equal_memory: whether even full recompute fits
  StepPrediction step;
  double memory_bytes = 0;  // of the fullest rank, estimated
};

// Returns 1f1b with the workload's recompute level; then zb_h1, zb_v, and interleaved with 2 chunks and with the most
// chunks up to 8, each with that level and, if it needs more memory than 1f1b there, in equal memory. Layers are
// divided evenly, and numbers of chunks for which they cannot be are omitted. If the workload's layers are not divided
// evenly or do not divide by pp, they are divided by their work (balanced_layer_counts). `workload` needs several
// stages.
std::vector<ScheduleRow> schedule_rows(const Workload& workload, const Cluster& cluster, Stragglers stragglers);

std::string to_text(const std::vector<ScheduleRow>& rows);
std::string to_json(const std::vector<ScheduleRow>& rows);  // a list with one object per row, one line

}  // namespace tri
