// How the layers of a model are divided over the virtual stages of a pipeline (parallel.layers_per_chunk).
#pragma once

#include <vector>

#include "lib/config/config.h"
#include "lib/model/layer_spec.h"
#include "lib/schedule/plan.h"

namespace tri {

// Returns whether all virtual stages have the same number of layers because the config asks for that.
bool divides_evenly(const Config& config);

// Whether the pp ranks between the second and the last differ only in the microbatches in flight, which decrease, so
// that none needs more memory than the second. `even`: the virtual stages have the same number of layers.
bool inner_stages_are_alike(Schedule schedule, bool even);

// What the division of `auto` depends on, which is the same on all ranks.
struct BalancedPipeline {
  const ModelConfig& model;
  Layers layers;
  Schedule schedule = Schedule::k1F1B;
  int pp = 1, chunks = 1;  // pp * chunks <= model.layers
  Recompute recompute = Recompute::kNone;
};

// Returns the number of layers of each virtual stage with `auto`: each further layer goes to the rank with the least
// work. The embedding and the head are work too, by their FLOPs and bytes.
std::vector<int> balanced_layer_counts(const BalancedPipeline& pipeline);

// Returns the number of layers of each virtual stage; `config` must be resolved.
std::vector<int> layer_counts(const Config& config);

// What the work of the virtual stages depends on.
struct StageWork {
  const ModelConfig& model;
  Layers layers;
  std::vector<int> layer_counts;  // by virtual stage
  Schedule schedule = Schedule::k1F1B;
  int tp = 1, cp = 1, micro_batch = 1;
  Recompute recompute = Recompute::kNone;
  double rank_tflops = 0, node_gb_per_s = 0;  // cluster
  double stages_gb_per_s = 0;                 // that a rank sends to another stage; no plan depends on it
};

// Returns the costs of the virtual stages in seconds: by FLOPs, and of norms and activations by bytes, with repeated
// work (recompute) and the transfers over tp that a split backward pass leaves exposed.
std::vector<StageCost> stage_costs(const StageWork& work);

// The same of a resolved config.
std::vector<StageCost> stage_costs(const Config& config);

// Returns the costs from which make_plan decides: those of stage_costs() if the schedule uses them, else none. The same
// on every rank. `config` must be resolved.
std::vector<StageCost> plan_costs(const Config& config);

// Returns the seconds of a step's pipeline of `num_microbatches` microbatches, by the simulator of plans, with the
// costs of stage_costs(). For comparing the schedules of a job; the schedule must not be auto.
double step_seconds(const Config& config, int num_microbatches);

// Returns the layers of a virtual stage.
LayerRange layers_of(const Config& config, Axis pp, int chunk);

}  // namespace tri
