// `trireme bench step`: the speed of a config's steps, without data, files or evaluation.
#pragma once

#include <optional>
#include <vector>

#include "kernels/core/arena.h"
#include "kernels/core/gpu.h"
#include "kernels/core/profile.h"
#include "kernels/gemm_search.h"
#include "lib/comm/job/job.h"
#include "lib/config/config.h"
#include "lib/observe/metrics/step_times.h"
#include "lib/parallel/mesh.h"

namespace tri {

struct StepBench {
  int steps = 20;     // measured
  int warmup = 5;     // run before them
  int profiled = 3;   // run after them, with events around every operation
  bool timed = true;  // measure how the time is spent
};

struct StepBenchResult {
  double median_ms = 0, fastest_ms = 0, slowest_ms = 0;
  double tokens_per_s = 0;  // at the median
  double tflops_per_rank = 0;
  std::optional<double> mfu, mfu_causal, mfu_fp8, imbalance;  // as in StepMetrics (lib/observe/metrics/metrics.h)
  int64_t memory_bytes = 0;                                   // this rank's arena
  std::optional<GpuLoad> gpu_load;                            // this rank's, medians over the measured steps
  std::vector<StepTimes> times;  // [stage]: a measured step's mean, on the stage's first rank
  double last_loss = 0;
  std::vector<OpProfile::Row> ops;  // of one profiled step on the compute stream, longest first
  struct GemmRow : GemmSearch::Row {
    double floor_microseconds = 0;  // at the GPU's peak for its operands (bf16 or FP8); 0 if unknown
  };
  std::vector<GemmRow> gemms;  // the autotuned choices
};

// Uses random tokens, and with data.document_mask documents of T/16 to T/2 tokens, the same on every layout. `config`
// must be resolved. Collective; every rank gets its own clock's results.
StepBenchResult bench_step(const Config& config, const Mesh& mesh, Job& job, Device& device, const StepBench& bench);
// Uses an existing device and arena (of allocate_rank's size); streams and groups end with the call.
StepBenchResult bench_step(const Config& config, const Mesh& mesh, Job& job, Device& device, Arena& arena,
                           const StepBench& bench);

}  // namespace tri
