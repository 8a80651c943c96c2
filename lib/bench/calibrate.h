// `trireme bench calibrate`: creates a cluster file for the simulator (lib/simulate/cluster.h) from measurements on the
// available ranks, GPUs or CPUs.
#pragma once

#include <string>
#include <vector>

#include "lib/comm/job/job.h"
#include "lib/config/config.h"
#include "lib/simulate/cluster.h"

namespace tri {

struct CalibrationBench {
  int steps = 5, warmup = 2;  // per measured variant and round
  int rounds = 3;             // over all variants; the fastest round of each counts
};

// One variant of the config: its measured time and that of the calibrated model.
struct CalibrationRow {
  std::string name;
  bool fitted = false;  // else measured only for comparison
  double measured_s = 0, predicted_s = 0;
  double scatter = 0;  // (slowest - fastest) / median of the measured steps
};

struct Calibration {
  Cluster cluster;
  std::vector<CalibrationRow> rows;
};

// Measures transfers on the config's axes; on GPUs the rates of a device copy and of attention inside steps; then steps
// of variants (half of the batch, of the layers, of the sequence, of the micro-batch; GEMMs in FP8 or not). Fits the
// other constants: software.gemm_share, software.layer_us, with tp node.latency_us (at most the measured value), on
// GPUs with FP8 software.fp8_gemm_share, on CPUs software.memory_share. With tp, steps show only the sum of layer_us
// and latencies. The config itself is measured too but excluded from the fit: its error is the first in the result.
// `config` must be resolved and planned. Collective; all ranks get the same result. Fails with kUsage if the config
// allows no variant.
Result<Calibration> calibrate(const Config& config, const Mesh& mesh, Job& job, Device& device,
                              const CalibrationBench& bench);

std::string to_text(const Calibration& calibration);
// Returns "" for a useful calibration; else a line that says why it is not.
std::string warning_of(const Cluster& calibrated);

// A planned config of a step and its seconds; the seconds of one call of attention's kernels on this rank, 0: unknown.
struct MeasuredStep {
  Config config;
  double seconds = 0;
  double attention_forward_s = 0, attention_backward_s = 0;
};

// Sets attention's shares of the peak, and its ramps if steps differ in the number of keys per query. Returns false if
// no step has kernel times.
bool use_attention(const std::vector<MeasuredStep>& steps, Cluster& cluster);

enum class KernelRates {
  kMeasured,  // the cluster already has those of memory and attention
  kUnknown,   // the fit finds memory's; attention's is 0.7 of GEMMs'
};
// Runs only the fit.
void fit_constants(const std::vector<MeasuredStep>& steps, KernelRates rates, Cluster& cluster);

}  // namespace tri
