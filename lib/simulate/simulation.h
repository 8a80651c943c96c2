// `trireme simulate`: predicts one config on one cluster, as a table and as JSON.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "lib/simulate/goodput.h"
#include "lib/simulate/programs.h"
#include "lib/simulate/step_memory.h"
#include "lib/simulate/step_model.h"

namespace tri {

struct Simulation {
  std::string name;
  Workload workload;
  Cluster cluster;
  Program program = Program::kTrireme;  // whose step it is; cluster.software.name is the one whose speeds it has
  StepPrediction step;
  int64_t memory_bytes = 0;       // of the fullest rank, from the program's own plan
  bool memory_estimated = false;  // without a plan, since the program has no cp and does not shard weights
  double room_bytes = 0;          // what a rank's arena may use
  Goodput goodput;
  std::vector<std::string> notes;  // sentences that qualify the answer
};

// Features of other programs that the config can't express.
struct WorkloadOptions {
  int cp = 1;  // context parallelism
  Program program = Program::kTrireme;
  std::shared_ptr<const DocumentSamples> documents;  // as in Workload
  Stragglers stragglers = Stragglers::kOn;
};

// Returns `parsed` resolved for `ranks` as the program would accept it: other programs split any number of layers over
// stages. Fails with kUsage, like resolve_config.
Result<Config> resolve_for(Program program, Config parsed, int ranks);

// Simulates `config`, which resolve_for returned. recompute: auto becomes the first level that fits into the
// cluster's memory. Fails with kUsage for a workload that can't be timed.
Result<Simulation> simulate(const Config& config, const Cluster& cluster, const WorkloadOptions& options = {});

// Whether the cluster file describes this program's speeds rather than another program's.
bool is_own(const Cluster& cluster);
// Returns " ± 3.7 %", by which a prediction is uncertain, or "" if the cluster file does not say.
std::string plus_minus(const Cluster& cluster);
// Returns a sentence that says whose speeds and whose memory a prediction combines.
std::string software_note(const Cluster& cluster, bool memory_estimated = false);
// Returns "989 TFLOP/s", to which MFU is relative.
std::string mfu_peak(const Workload& workload, const Cluster& cluster);
// Whether this much memory fits, but with less than 5 % to spare.
bool is_tight(double bytes, double room_bytes);

std::string to_text(const Simulation& simulation);
std::string to_json(const Simulation& simulation);  // one object, one line

}  // namespace tri
