// The end of a run whose loss or gradients are not finite.
#pragma once

#include "lib/comm/job.h"
#include "lib/observe/metrics.h"
#include "lib/train/trainer.h"

namespace tri {

// After `trainer` made such a step, of which `metrics` tell: every rank looks where its own numbers went wrong; the
// error names them all (kNotFinite). Collective; the same on all ranks.
Error not_finite_error(Trainer& trainer, Job& job, const StepMetrics& metrics);

}  // namespace tri
