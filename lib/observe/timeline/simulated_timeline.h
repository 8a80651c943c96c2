// Converts a simulated step (lib/simulate) to the form of a measured one, with one segment per stage, for the same
// trace.
#pragma once

#include <vector>

#include "lib/observe/timeline/timeline_segment.h"
#include "lib/simulate/step_model.h"

namespace tri {

// Returns step 1 of the stages of one pipeline, that of rank 0, on machines without stragglers.
// `workload` must be valid (problem_of). An action contains the sums of its layers' GEMMs, attention, memory-bound
// kernels and exposed tp transfers. Coupled transfers between stages (StageTransfers::kCoupled) are shown as blocking
// ones.
std::vector<TimelineSegment> simulated_segments(const Workload& workload, const Cluster& cluster,
                                                const TransferTimes& transfers);

}  // namespace tri
