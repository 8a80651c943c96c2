#include "lib/model/flops.h"

namespace tri {

double head_flops_per_token(const ModelConfig& m) { return 6.0 * static_cast<double>(padded_vocab(m)) * m.hidden; }

double model_flops_per_token(const Config& config, AttentionWork work) {
  const ModelConfig& m = config.model;
  const Layers layers = layers_of_model(config);
  return head_flops_per_token(m) +
         layers.sum(layers.all(), [&](const LayerSpec& layer) { return layer.flops_per_token(work); });
}

}  // namespace tri
