// `trireme simulate`: one config on one cluster, predicted, as a table and as JSON.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "lib/simulate/goodput.h"
#include "lib/simulate/step_memory.h"
#include "lib/simulate/step_model.h"

namespace tri {

struct Simulation {
  std::string name;
  Workload workload;
  Cluster cluster;
  StepPrediction step;
  int64_t memory_bytes = 0;       // of the fullest rank: the program's own plan
  bool memory_estimated = false;  // no plan: the program has no cp, and does not shard weights
  double room_bytes = 0;          // what a rank's arena may take
  Goodput goodput;
  std::vector<std::string> notes;  // sentences that qualify the answer
};

// What other programs do and this one's config has no word for, or not yet.
struct WorkloadOptions {
  int cp = 1;         // context parallelism
  bool fsdp = false;  // weights sharded over dp as well
  Stragglers stragglers = Stragglers::kOn;
};

// `config` resolved for its ranks. recompute: auto becomes the first level that fits into the cluster's memory. Error
// (kUsage): a workload that can't be timed.
Result<Simulation> simulate(const Config& config, const Cluster& cluster, const WorkloadOptions& options = {});

// Whose software a cluster file describes, a sentence: its constants, fixed seconds among them, hold for that one.
std::string software_note(const Cluster& cluster, double step_seconds);

std::string to_text(const Simulation& simulation);
std::string to_json(const Simulation& simulation);  // one object, one line

}  // namespace tri
