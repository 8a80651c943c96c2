// The model of a step: the durations of a layer's kernels (layer_times.h) become the costs of the real Plan's actions;
// the Plan runs on streams (column.h), alongside which the store's buckets are reduced and gathered; the optimizer ends
// the step.
#pragma once

#include <algorithm>
#include <string>
#include <vector>

#include "lib/simulate/column.h"
#include "lib/simulate/layer_times.h"

namespace tri {

// Seconds of a step on its busiest stage; they add up to the step.
struct StepParts {
  double gemm = 0, attention = 0, memory = 0;
  double tp = 0, ep = 0, pp = 0, dp = 0;  // exposed transfers
  double bubble = 0, optimizer = 0, stragglers = 0, fixed = 0;
};

struct StepPrediction {
  double seconds = 0;
  StepParts parts;
  double tokens_per_second = 0;
  double tflops_per_rank = 0;
  double mfu = 0;         // of the bf16 peak (fp32's for fp32), with all FLOPs of the band
  double mfu_causal = 0;  // the same, but counts only unmasked attention
  double mfu_fp8 = 0;     // with FP8 GEMMs: like mfu, of the FP8 peak
  int busiest_stage = 0;
};

enum class Stragglers { kOn, kOff };

// Reductions and gathers of one chunk's buckets over dp.
struct ChunkTraffic {
  int buckets = 1;
  double reduce = 0, gather = 0;  // seconds per bucket
};

// The components of a step before they are combined, for traces.
struct StepCosts {
  ColumnCosts column;
  std::vector<LayerTimes> stages;     // (pp · chunks), by virtual stage
  std::vector<ChunkTraffic> traffic;  // (pp · chunks)
  std::vector<double> optimizer;      // (pp)
  std::vector<double> tied;           // (pp): the sum of the gradients of a table that two stages share
};
// Returns the components of predict_step(), before they are combined.
StepCosts step_costs(const Workload& workload, const Cluster& cluster, const TransferTimes& transfers);

// Returns how long a step's forward passes, which would otherwise begin at `first_forward` (pp · chunks, by virtual
// stage), wait for their parameters, which dp gathers bucket by bucket from the step's beginning. This is the maximum
// over all stages. Overlap hides at most `hidden_share` of the gathers.
double gather_wait(const Workload& workload, const ColumnCosts& column, const std::vector<ChunkTraffic>& traffic,
                   const std::vector<double>& first_forward, double hidden_share);
// Returns how many seconds after a rank's compute its reductions end. They take `total` seconds, of which overlap hides
// at most `hidden_share`; without this limit they would end `late` seconds after compute.
inline double reductions_exposed(double late, double total, double hidden_share) {
  return std::max({0.0, late, (1 - hidden_share) * total});
}

// Returns the prediction of a step. `workload` must be valid (problem_of in workload.h).
StepPrediction predict_step(const Workload& workload, const Cluster& cluster, const TransferTimes& transfers,
                            Stragglers stragglers = Stragglers::kOn);
// The same, with ring collectives (RingTimes in collectives.h).
StepPrediction predict_step(const Workload& workload, const Cluster& cluster);

// Grows the workload's bucket_elements by powers of two while that saves at least half a percent of the step, and
// returns the step. Each bucket's ring has a latency in proportion to its ranks, so small buckets of many ranks are
// slow; large ones begin later and leave more to do after the last backward.
StepPrediction predict_with_buckets(Workload& workload, const Cluster& cluster, const TransferTimes& transfers);

// Returns a warning if this program has no attention kernel on tensor cores for the workload's heads, since predicted
// times assume one; "" otherwise.
std::string attention_note(const Workload& workload, const Cluster& cluster);

// Returns what is assumed of how evenly a router divides the rows among the experts, and how wrong predictions of
// published steps are; "" without experts.
std::string experts_note(const Workload& workload);

// Returns which documents a prediction assumes with data.document_mask, and what they change on `cluster`; "" without
// it.
std::string documents_note(const Workload& workload, const Cluster& cluster);

// Seconds of a step in which a rank's transfers run, hidden or not: messages of one direction, and dp's reductions and
// gathers. Determines how often they share the same links.
struct TransferLoads {
  double pp_direction = 0, dp = 0;
};
TransferLoads transfer_loads(const Workload& workload, const Cluster& cluster, const TransferTimes& transfers);

// A quick estimate for searches: the pipeline by its formula, without transfers between stages and the tails of dp. It
// is approximately a lower bound of predict_step.
double bound_step(const Workload& workload, const Cluster& cluster, const TransferTimes& transfers);

// Returns names and values in order, for tables and JSON.
std::vector<std::pair<std::string, double>> named_parts(const StepParts& parts);
// Returns the name for reports: "exposed tp transfers" for "tp_exposed". "" for an unknown name.
const char* part_title(const std::string& name);

}  // namespace tri
