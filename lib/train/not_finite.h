// Steps whose loss or gradients are not finite: where that began, and the end of a run for which it is one too many.
#pragma once

#include <string>
#include <vector>

#include "lib/comm/job.h"
#include "lib/observe/metrics.h"
#include "lib/train/trainer.h"

namespace tri {

// After `trainer` made such a step: the ranks whose own numbers went wrong, each with the first of its tensors ("rank 3
// [pp0 dp1 tp1]: gradient of layers/3/..."), the first of them where they are many. Repeats the step. Collective; the
// same on all ranks.
std::vector<std::string> not_finite_places(Trainer& trainer, Job& job);

// A line each, or what it means that there are none.
std::string to_text(const std::vector<std::string>& places);

// What ends a run after the step of `metrics` (kNotFinite). `skipped`: of the steps just before it, those that were not
// finite either and were left out.
Error not_finite_error(const StepMetrics& metrics, const std::vector<std::string>& places, int64_t skipped);

}  // namespace tri
