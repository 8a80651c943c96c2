// `trireme bench step --sweep layout`: times the same steps on several layouts in one job.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "lib/bench/layout_choice.h"
#include "lib/bench/step.h"

namespace tri {

struct LayoutSweep {
  int limit = 16;  // layouts tried
  StepBench step{.steps = 5, .warmup = 2, .profiled = 0};
};

// One layout. Times are the slowest rank's, bytes the fullest one's.
struct SweepRow {
  ParallelLayout layout;
  bool own = false;  // the config's own
  double ms = 0, tokens_per_s = 0;
  std::optional<double> mfu;
  int64_t memory_bytes = 0;
  std::string problem;  // why there are no times; "" if there are
  ExitCode code = ExitCode::kOk;
};

struct SweepResult {
  std::vector<SweepRow> rows;  // best first; failed ones last
  LayoutChoice choice;         // what was skipped
  int64_t most_bytes = 0;      // of a rank's arena
  // How much less device memory is free than at the start, on the fullest rank; none on the CPU, whose memory other
  // processes use too.
  std::optional<int64_t> left_bytes;
};

void sort_best_first(std::vector<SweepRow>& rows);  // as in SweepResult; failed rows keep their order

// Uses random tokens. `config` need not be resolved except for run.device; each layout is planned separately
// (job_plan.h). A layout that fails with an Error is listed with it; a Fatal ends the job and the sweep. Calls
// `on_trial` before each layout with its number and their count. Collective; all ranks have the same result.
Result<SweepResult> sweep_layouts(const Config& config, Job& job, Device& device, const LayoutSweep& sweep,
                                  const std::function<void(const ParallelLayout&, int number, int count)>& on_trial);

}  // namespace tri
