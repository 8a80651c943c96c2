// `trireme bench calibrate`: a cluster file for the simulator (lib/simulate/cluster.h) from measurements on the ranks
// that are here, GPUs or CPUs.
#pragma once

#include <string>
#include <vector>

#include "lib/comm/job.h"
#include "lib/config/config.h"
#include "lib/simulate/cluster.h"

namespace tri {

struct CalibrationBench {
  int steps = 5, warmup = 2;  // of each measured variant, in each round
  int rounds = 3;             // through all variants; of each its fastest counts
};

// One variant of the config: measured, and what the calibrated model says of it.
struct CalibrationRow {
  std::string name;
  bool fitted = false;  // else blind: measured only to compare
  double measured_s = 0, predicted_s = 0;
  double scatter = 0;  // (slowest - fastest) / median of the measured steps
};

struct Calibration {
  Cluster cluster;
  std::vector<CalibrationRow> rows;
};

// Measures transfers on the config's axes, on GPUs the rates of a device copy and of attention inside steps, then steps
// of variants (half of the batch, of the layers, of the sequence, of the micro-batch; GEMMs in FP8 or out of it), and
// fits what is left: software.gemm_share, software.fixed_s, with tp node.latency_us, downwards from what was measured,
// on GPUs with FP8 software.fp8_gemm_share, on CPUs software.memory_share. The config itself is measured too and stays
// out of the fit: its error is the first that the result shows. `config` resolved and planned. Collective; all ranks
// have the same result. Error (kUsage): the config leaves no variant.
Result<Calibration> calibrate(const Config& config, const Mesh& mesh, Job& job, Device& device,
                              const CalibrationBench& bench);

std::string to_text(const Calibration& calibration);
// "" for one that is worth using; else a line that says why it is not.
std::string warning_of(const Cluster& calibrated);

// A step's config, planned, and the seconds that it took; of attention's kernels one call's on this rank, 0: not known.
struct MeasuredStep {
  Config config;
  double seconds = 0;
  double attention_forward_s = 0, attention_backward_s = 0;
};

// Attention's shares of the peak, and its ramps if steps differ in the keys that a query sees. False: no step knows its
// kernels' times.
bool use_attention(const std::vector<MeasuredStep>& steps, Cluster& cluster);

enum class KernelRates {
  kMeasured,  // memory's and attention's are in the cluster already
  kUnknown,   // the fit finds memory's, and attention's is 0.7 of GEMMs'
};
// The fit alone.
void fit_constants(const std::vector<MeasuredStep>& steps, KernelRates rates, Cluster& cluster);

}  // namespace tri
