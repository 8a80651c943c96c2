// `trireme plan`: the layouts of a model on a cluster that fit into memory, ranked by predicted tokens a second.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "lib/simulate/step_memory.h"
#include "lib/simulate/step_model.h"

namespace tri {

struct PlannedLayout {
  Workload workload;
  StepPrediction step;
  StepMemory memory;  // estimated
};

struct PlanSearch {
  std::vector<PlannedLayout> best;  // best first
  int64_t tried = 0;                // layouts that the config's rules allow
  int64_t fitted = 0;               // of them, those that fit into memory
  double seconds = 0;               // that the search took
};

// `parsed` with its derived fields, for one rank: what is searched for. Of its layout, and of a micro-batch that does
// not divide the batch, nothing is asked. Error (kUsage): as resolve_config.
Result<Config> without_layout(Config parsed);

// Whether a search chooses a field ("parallel.tp") itself, whatever the config says.
bool chosen_by_search(std::string_view field);

// What a search leaves open. The batch, the model and the optimizer stay the config's.
struct PlanOptions {
  int ranks = 0;
  int keep = 10;  // layouts that are returned
  int max_chunks = 16;
  int micro_batch = 0;  // 0: any up to the next
  int max_micro_batch = 16;
};

// `config` resolved; of its parallel section the overlaps alone count. Its precision is kept, but precision.gemm: auto
// leaves it to the search where the device has FP8. Error (kUsage): no layout fits, or none divides the model.
Result<PlanSearch> search_layouts(const Config& config, const Cluster& cluster, const PlanOptions& options);

// A table of the best, why the first one wins over the second, and what limits it.
std::string to_text(const PlanSearch& search, const Cluster& cluster);
std::string to_json(const PlanSearch& search);

// `config` with the layout's parallel section and micro-batch: a run config that works as it is.
Config with_layout(Config config, const Workload& layout);

}  // namespace tri
