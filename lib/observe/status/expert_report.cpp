#include "lib/observe/status/expert_report.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <numeric>

#include "lib/observe/status/five_digits.h"

namespace tri {
ExpertBalance balance_of(const RouterNumbers& layer) {
  const double sum = std::accumulate(layer.load.begin(), layer.load.end(), 0.0);
  const auto experts = static_cast<double>(layer.load.size());
  ExpertBalance balance{.dead = static_cast<int>(std::ranges::count(layer.load, 0.0f))};
  if (sum == 0) return balance;
  balance.max_load = *std::ranges::max_element(layer.load) / (sum / experts);
  for (const float load : layer.load)
    if (load > 0) balance.entropy -= load / sum * std::log(load / sum) / std::max(1e-9, std::log(experts));
  return balance;
}

std::string expert_json(int64_t step, const Config& config, std::span<const RouterNumbers> layers) {
  nlohmann::ordered_json all = nlohmann::ordered_json::array();
  for (size_t i = 0; i < layers.size(); ++i) {
    const ExpertBalance balance = balance_of(layers[i]);
    all.push_back({{"layer", config.model.dense_layers + static_cast<int>(i)},
                   {"max_load", five_digits(balance.max_load)},
                   {"dead", balance.dead},
                   {"entropy", five_digits(balance.entropy)},
                   {"aux_loss", five_digits(layers[i].aux_loss)},
                   {"z_loss", five_digits(layers[i].z_loss)}});
  }
  return nlohmann::ordered_json({{"experts", {{"step", step}, {"layers", all}}}}).dump();
}

}  // namespace tri
