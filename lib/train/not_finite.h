// Steps whose loss or gradients are not finite: where that began, and the end of a run for which it is one too many.
#pragma once

#include <string>
#include <vector>

#include "lib/comm/job.h"
#include "lib/observe/metrics.h"
#include "lib/train/trainer.h"

namespace tri {

// The ranks whose own numbers went wrong.
struct NotFinitePlaces {
  // "rank 3 [pp0 dp1 tp1]: gradient of layers/3/...", the first of them where they are many.
  std::vector<std::string> texts;
  // The first of the ranks, where all of them are on one machine, which may have computed wrongly; else -1 and "".
  int world_rank = -1;
  std::string host;
};
template <class Archive>
void fields(Archive& archive, NotFinitePlaces& p) {
  archive(p.texts, p.world_rank, p.host);
}

// After `trainer` made such a step. Repeats the step. Collective; the same on all ranks.
NotFinitePlaces not_finite_places(Trainer& trainer, Job& job);

// A line each, or what it means that there are none.
std::string to_text(const std::vector<std::string>& places);

// What ends a run after the step of `metrics` (kNotFinite). `skipped`: of the steps just before it, those that were not
// finite either and were left out.
Error not_finite_error(const StepMetrics& metrics, const std::vector<std::string>& places, int64_t skipped);

}  // namespace tri
