// A step that was simulated (lib/simulate), in the form of one that was measured: a segment a stage, for the same
// trace.
#pragma once

#include <vector>

#include "lib/observe/timeline_segment.h"
#include "lib/simulate/step_model.h"

namespace tri {

// Step 1 of the stages of one pipeline, those of dp rank 0 and tp rank 0, on machines without stragglers. `workload`
// without a problem. Inside an action stand the sums of its layers' GEMMs, attention, memory-bound kernels and exposed
// tp transfers. Transfers between stages that are coupled (StageTransfers::kCoupled) are shown as blocking ones.
std::vector<TimelineSegment> simulated_segments(const Workload& workload, const Cluster& cluster,
                                                const TransferTimes& transfers);

}  // namespace tri
