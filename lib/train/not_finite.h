// Steps whose loss or gradients are not finite: where that began, and the error of a run with too many of them.
#pragma once

#include <string>
#include <vector>

#include "lib/comm/job/job.h"
#include "lib/observe/metrics/metrics.h"
#include "lib/train/trainer.h"

namespace tri {

// The ranks whose own numbers were not finite.
struct NotFinitePlaces {
  // Such as "rank 3 [pp0 dp1 tp1]: gradient of layers/3/..."; only the first few if there are many.
  std::vector<std::string> texts;
  // The first of the ranks, if all are on one machine, which may be faulty; else -1 and "".
  int world_rank = -1;
  std::string host;
};
template <class Archive>
void fields(Archive& archive, NotFinitePlaces& p) {
  archive(p.texts, p.world_rank, p.host);
}

// Finds the places after such a step of `trainer`, by repeating the step. Collective; the same result on all ranks.
NotFinitePlaces not_finite_places(Trainer& trainer, Job& job);

// Returns a line for each place, or a sentence about their absence.
std::string to_text(const std::vector<std::string>& places);

// Returns the error (kNotFinite) of a run that ends after the step of `metrics`. `skipped`: how many steps just before
// it were not finite either and were skipped.
Error not_finite_error(const StepMetrics& metrics, const std::vector<std::string>& places, int64_t skipped);

}  // namespace tri
