// Estimates what a config will cost on a cluster. `cluster.*` describes the machines; no run depends on it.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "lib/checkpoint/memory_budget.h"
#include "lib/config/config.h"

namespace tri {

struct OrderFields;

// Traffic of gradients and parameters over dp (kBucketAxes) in one step, for a rank of the stage that has most of them.
// `config` must be resolved.
struct DpTraffic {
  int64_t microbatch_bytes = 0;  // sent per rank after each microbatch: zero 2 reduces the gradients of each
  int64_t step_bytes = 0;        // sent per rank in a step, including those
  double bytes_per_second = 0;   // rate at which a rank sends
  int ranks = 1;                 // of a dp group
  int on_node = 1;               // members on one machine, whose adapters carry its ring together
  bool crosses_nodes = false;    // the dp group spans several machines
  bool network_bound = false;    // the network adapters limit bytes_per_second, not the links inside a machine
  double compute_seconds = 0;    // forward and backward of a microbatch, without recompute

  double step_seconds() const { return static_cast<double>(step_bytes) / bytes_per_second; }
  double microbatch_seconds() const { return static_cast<double>(microbatch_bytes) / bytes_per_second; }
  // Whether a microbatch sends more than the next one's compute can hide.
  bool exceeds_compute() const { return microbatch_seconds() > compute_seconds; }
};
DpTraffic dp_traffic(const Config& config);

// Traffic inside the layers over cp or ep in one step, for a rank of the stage that sends most of it: with cp the keys
// and values that the others' windows reach, and their gradients (lib/model/kv_exchange.h); with ep rows to their
// experts, or all tokens to all ranks, and back, both ways, if the experts are balanced (lib/model/moe.h).
struct LayerTraffic {
  std::string axis;            // "cp" or "ep"
  int64_t step_bytes = 0;      // sent per rank
  int64_t network_bytes = 0;   // of these, to other machines
  int ranks = 1;               // of a group
  int on_node = 1;             // members on one machine
  double seconds = 0;          // of sending them
  double compute_seconds = 0;  // of a step: forward and backward, without recompute

  bool crosses_nodes() const { return on_node < ranks; }
};
// Returns that of the axes that have several ranks.
std::vector<LayerTraffic> layer_traffic(const Config& config);

// Returns the idle time of all stages over their compute time in a step, by the simulator of pipelines. Of stages with
// equal numbers of layers it is that of equal stages, which ideal_bubble() states too; of others, that of their FLOPs.
// Transfers take no time. `config` must be resolved.
double simulated_bubble(const Config& config);

// How often to save, computed as in `simulate` (lib/simulate/goodput.h). A checkpoint is written alongside training, so
// it costs only the time for which it stalls training.
struct CheckpointEstimate {
  int64_t bytes = 0;            // of all ranks: weights and optimizer states
  double write_seconds = 0;     // at cluster.storage_gb_per_s
  double stall_seconds = 0;     // for which a checkpoint stalls training
  double mtbf_seconds = 0;      // of the job, over all its ranks
  double interval_seconds = 0;  // the best, about sqrt(2 · stall · MTBF); no less than the write time
};
CheckpointEstimate checkpoint_estimate(const Config& config, int ranks);

// Host memory of checkpoints in memory (lib/checkpoint/memory_budget.h), in bytes; all 0 if checkpoint.memory_every is
// 0.
struct MemoryCheckpointEstimate {
  int64_t rank_bytes = 0;   // of the rank that needs most: its segments and those of the rank whose buddy it is
  int64_t node_bytes = 0;   // of the node that needs most, with cluster.ranks_per_node ranks
  int64_t node_others = 0;  // of that node, for checkpoints in storage
  int ranks = 0;            // on that node
};
// `config` must be planned (lib/engine/job_plan.h).
MemoryCheckpointEstimate memory_checkpoint_estimate(Config config);

// Return `check`'s warnings in addition to the plan's own, without a full stop; "" for none. The first two apply only
// to GPUs, which `cluster.*` describes.
std::string dp_warning(const Config& config, const DpTraffic& traffic);
std::string layer_warning(const Config& config, const LayerTraffic& traffic);  // from 10 % of a step's compute on
std::string checkpoint_warning(const Config& config, const CheckpointEstimate& estimate);
// That the memory of this machine, which may not be one of the job's, would not suffice. `memory`: of this machine.
std::string memory_checkpoint_warning(const MemoryCheckpointEstimate& estimate, const NodeMemory& memory);
std::string vocab_warning(const Config& config, int tokens);  // `tokens`: of the tokenizer
// Returns a line if the run would read a source's samples many times.
std::string epochs_warning(const Config& config, const OrderFields& order);

// For the log and `check`: warns if nothing but the end of the run saves; else "".
std::string no_checkpoints_warning(const CheckpointConfig& checkpoint);
// For the log and `check`: warns if checkpoints in storage are at least as frequent as those in memory; else "".
std::string memory_every_warning(const CheckpointConfig& checkpoint);

}  // namespace tri
