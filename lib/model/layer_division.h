// How the layers of a model are divided over the virtual stages of a pipeline (parallel.layers_per_chunk).
#pragma once

#include <vector>

#include "lib/config/config.h"
#include "lib/model/layer_spec.h"

namespace tri {

// Returns whether all virtual stages have the same number of layers because the config asks for that.
bool divides_evenly(const Config& config);

// Returns the number of layers of each virtual stage; `config` must be resolved. With `auto` each further layer goes to
// the rank with the least work: the embedding and the head are work too, by their FLOPs and bytes. The division depends
// only on the model, precision, recompute and the pipeline, so all ranks compute the same.
std::vector<int> layer_counts(const Config& config);

// Returns the seconds of a step's pipeline of `num_microbatches` microbatches, by the simulator of plans: the work of
// its stages comes from the model's FLOPs at cluster.rank_tflops, with the transfers over tp that a split backward pass
// leaves exposed. For comparing the schedules of a job; the schedule must not be auto.
double step_seconds(const Config& config, int num_microbatches);

// Returns the layers of a virtual stage.
LayerRange layers_of(const Config& config, Axis pp, int chunk);

}  // namespace tri
