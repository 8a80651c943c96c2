// The balance of a step's experts, for metrics.jsonl.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "lib/config/config.h"
#include "lib/model/moe.h"

namespace tri {

// The balance of one layer.
struct ExpertBalance {
  double max_load = 0;  // of the fullest expert, as a multiple of the mean; 0: no expert has rows
  int dead = 0;         // experts without rows
  double entropy = 0;   // of the loads, as a share of that of equal loads
};
ExpertBalance balance_of(const RouterNumbers& layer);

// Returns a line of metrics.jsonl: {"experts":{"step":100,"layers":[{"layer":1,"max_load":1.4,"dead":0,"entropy":0.98,
// "aux_loss":0.0102,"z_loss":0.001},…]}}. The losses contain their weights.
std::string expert_json(int64_t step, const Config& config, std::span<const RouterNumbers> layers);

}  // namespace tri
