#include "lib/model/flops.h"

#include <algorithm>

namespace tri {

double head_flops_per_token(const ModelConfig& m) { return 6.0 * static_cast<double>(padded_vocab(m)) * m.hidden; }

double model_flops_per_token(const Config& config, AttentionWork work) {
  const ModelConfig& m = config.model;
  const Layers layers = layers_of_model(config);
  return head_flops_per_token(m) +
         layers.sum(layers.all(), [&](const LayerSpec& layer) { return layer.flops_per_token(work); });
}

std::vector<int> attention_windows(const Config& config) {
  std::vector<int> windows;
  for (const LayerSpec& layer : layers_of_model(config).kinds) windows.push_back(layer.attention.window);
  std::ranges::sort(windows);
  windows.erase(std::unique(windows.begin(), windows.end()), windows.end());
  return windows;
}

double model_flops(const Config& config, double tokens, const std::vector<double>& pairs) {
  const std::vector<int> windows = attention_windows(config);
  TRI_REQUIRE(pairs.size() == windows.size(), "pairs of {} windows for {}", pairs.size(), windows.size());
  const Layers layers = layers_of_model(config);
  return tokens * head_flops_per_token(config.model) + layers.sum(layers.all(), [&](const LayerSpec& layer) {
    const auto window = std::ranges::find(windows, layer.attention.window) - windows.begin();
    const double others =
        layer.flops_per_token(AttentionWork::kCausal) - layer.attention.core_flops_per_token(AttentionWork::kCausal);
    return tokens * others + layer.attention.flops_per_pair() * pairs[static_cast<size_t>(window)];
  });
}

}  // namespace tri
