#include "lib/observe/status/expert_report.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "io/base/format.h"
#include "io/base/json.h"
#include "lib/observe/status/five_digits.h"

namespace tri {
namespace {

nlohmann::ordered_json loads_of(std::span<const float> load) {
  const double sum = std::accumulate(load.begin(), load.end(), 0.0);
  nlohmann::ordered_json percents = nlohmann::ordered_json::array();
  for (const float rows : load)
    percents.push_back(
        rows > 0 ? std::max<int64_t>(1, std::llround(100 * rows * static_cast<double>(load.size()) / sum)) : 0);
  return percents;
}

}  // namespace

std::vector<ExpertBalance> balances_of(const Config& config, std::span<const RouterNumbers> layers) {
  std::vector<ExpertBalance> balances;
  for (const RouterNumbers& layer : layers)
    balances.push_back(balance_of(config.model.dense_layers + static_cast<int>(balances.size()), layer.load));
  return balances;
}

std::string expert_json(int64_t step, const Config& config, std::span<const RouterNumbers> layers) {
  nlohmann::ordered_json all = nlohmann::ordered_json::array();
  const std::vector<ExpertBalance> balances = balances_of(config, layers);
  for (size_t i = 0; i < layers.size(); ++i)
    all.push_back({{"layer", balances[i].layer},
                   {"max_load", five_digits(balances[i].max_load)},
                   {"dead", balances[i].dead},
                   {"entropy", five_digits(balances[i].entropy)},
                   {"aux_loss", five_digits(layers[i].aux_loss)},
                   {"z_loss", five_digits(layers[i].z_loss)},
                   {"loads", loads_of(layers[i].load)}});
  return nlohmann::ordered_json({{"experts", {{"step", step}, {"layers", all}}}}).dump();
}

std::string ExpertWatch::take(std::span<const ExpertBalance> layers) {
  bad_steps_.resize(layers.size());
  int64_t bad_layers = 0;
  size_t worst = 0;
  for (size_t i = 0; i < layers.size(); ++i) {
    const bool bad = layers[i].dead > 0 || layers[i].max_load > kMostLoad;
    bad_steps_[i] = bad ? bad_steps_[i] + 1 : 0;
    if (bad_steps_[i] < kSteps) continue;
    if (bad_layers == 0 || layers[i].max_load > layers[worst].max_load) worst = i;
    ++bad_layers;
  }
  if (bad_layers == 0) return "";
  return fmt::format(
      "experts: layer {} had dead experts ({} now) or a load above {:g} x the mean ({:.1f} now) in the last {} steps "
      "(in {} of {}); raise model.aux_loss or, with a sigmoid router, model.router_bias_rate",
      layers[worst].layer, layers[worst].dead, kMostLoad, layers[worst].max_load, bad_steps_[worst], bad_layers,
      counted(static_cast<int64_t>(layers.size()), "layer"));
}

}  // namespace tri
