// What a config will cost a cluster, on paper: `cluster.*` says what the machines do, and no run depends on it.
#pragma once

#include <cstdint>
#include <string>

#include "lib/config/config.h"

namespace tri {

struct OrderFields;

// Gradients and parameters of one step over dp (kBucketAxes), of a rank of the stage that has most of them. `config`
// resolved.
struct DpTraffic {
  int64_t microbatch_bytes = 0;  // that a rank sends after each microbatch: zero 2 reduces each one's gradients
  int64_t step_bytes = 0;        // that it sends in a step, those included
  double bytes_per_second = 0;   // that leave the rank
  int ranks = 1;                 // of a dp group
  int on_node = 1;               // those of them on a machine, whose adapters carry its ring together
  bool crosses_nodes = false;    // the dp group is on several machines
  bool network_bound = false;    // the network's adapters say bytes_per_second, not the links inside a machine
  double compute_seconds = 0;    // forward and backward of a microbatch, recompute not counted

  double step_seconds() const { return static_cast<double>(step_bytes) / bytes_per_second; }
  double microbatch_seconds() const { return static_cast<double>(microbatch_bytes) / bytes_per_second; }
  // More is sent after a microbatch than the next one's compute can hide.
  bool exceeds_compute() const { return microbatch_seconds() > compute_seconds; }
};
DpTraffic dp_traffic(const Config& config);

// How often to save, reckoned as `simulate` does (lib/simulate/goodput.h). A checkpoint is written alongside training:
// it costs the moment for which it holds training up.
struct CheckpointEstimate {
  int64_t bytes = 0;            // of all ranks: weights and optimizer states
  double write_seconds = 0;     // at cluster.storage_gb_per_s
  double stall_seconds = 0;     // that one holds training up
  double mtbf_seconds = 0;      // of the job: of one of its ranks
  double interval_seconds = 0;  // the best, about sqrt(2 · stall · MTBF); no less than the writing takes
};
CheckpointEstimate checkpoint_estimate(const Config& config, int ranks);

// What `check` warns of in addition to the plan's own warnings, each without a full stop. dp_warning: on GPUs alone,
// since cluster.* speaks of them. "" where there is nothing to say.
std::string dp_warning(const Config& config, const DpTraffic& traffic);
std::string checkpoint_warning(const Config& config, const CheckpointEstimate& estimate);
std::string vocab_warning(const Config& config, int tokens);  // that the tokenizer has
// A line when the run would read a source's samples many times over.
std::string epochs_warning(const Config& config, const OrderFields& order);

// For the log and `check`: nothing but the end of the run saves. "" where something does.
std::string no_checkpoints_warning(const CheckpointConfig& checkpoint);

}  // namespace tri
