// The balance of a step's experts, over all ranks: for metrics.jsonl, and as a warning if it stays bad.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "lib/config/config.h"
#include "lib/model/moe.h"
#include "lib/observe/metrics/expert_balance.h"

namespace tri {

// `layers`: the layers with experts, in the order of the model.
std::vector<ExpertBalance> balances_of(const Config& config, std::span<const RouterNumbers> layers);

// Returns a line of metrics.jsonl: {"experts":{"step":100,"layers":[{"layer":1,"max_load":1.4,"dead":0,"entropy":0.98,
// "aux_loss":0.0102,"z_loss":0.001,"loads":[97,140,…]},…]}}. The losses contain their weights. A load is in percent of
// the mean load of the layer's experts, and 0 only without rows.
std::string expert_json(int64_t step, const Config& config, std::span<const RouterNumbers> layers);

// Counts the steps in which a layer was badly balanced: an expert without rows, or one with more than kMostLoad times
// the mean.
class ExpertWatch {
 public:
  static constexpr double kMostLoad = 3;
  static constexpr int64_t kSteps = 50;  // early and small steps may be uneven by chance

  // Takes the layers of a step. Returns the worst of those that were badly balanced in the last kSteps steps or more:
  // "experts: layer 3 had dead experts (2 now) or a load above 3 x the mean (4.1 now) in the last 64 steps (in 1 of 24
  // layers)"; "" if there is none.
  std::string take(std::span<const ExpertBalance> layers);

 private:
  std::vector<int64_t> bad_steps_;  // [layer]: the last ones without a balanced step between them
};

}  // namespace tri
