#include "lib/observe/metrics/expert_balance.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "io/base/error.h"
#include "io/base/format.h"

namespace tri {

ExpertBalance balance_of(int layer, std::span<const float> load) {
  const double sum = std::accumulate(load.begin(), load.end(), 0.0);
  const auto experts = static_cast<double>(load.size());
  ExpertBalance balance{.layer = layer, .dead = static_cast<int>(std::ranges::count(load, 0.0f))};
  if (sum == 0) return balance;
  balance.max_load = *std::ranges::max_element(load) / (sum / experts);
  for (const float rows : load)
    if (rows > 0) balance.entropy -= rows / sum * std::log(rows / sum) / std::max(1e-9, std::log(experts));
  return balance;
}

WorstBalance worst_of(std::span<const ExpertBalance> layers) {
  TRI_REQUIRE(!layers.empty(), "the balance of no layer");
  WorstBalance worst{.fullest = *std::ranges::max_element(layers, {}, &ExpertBalance::max_load),
                     .least_even = *std::ranges::min_element(layers, {}, &ExpertBalance::entropy)};
  for (const ExpertBalance& layer : layers) {
    worst.dead += layer.dead;
    worst.dead_layers += layer.dead > 0 ? 1 : 0;
  }
  return worst;
}

std::string balance_text(const WorstBalance& worst) {
  const std::string dead =
      worst.dead == 0 ? "none dead"
                      : fmt::format("{} dead (in {})", worst.dead, counted(int64_t{worst.dead_layers}, "layer"));
  return fmt::format("fullest expert {:.2f} x the mean (layer {}), {}, lowest entropy {:.3f} (layer {})",
                     worst.fullest.max_load, worst.fullest.layer, dead, worst.least_even.entropy,
                     worst.least_even.layer);
}

}  // namespace tri
