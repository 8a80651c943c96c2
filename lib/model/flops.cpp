#include "lib/model/flops.h"

namespace tri {

double model_flops_per_token(const Config& config, AttentionWork work) {
  const ModelConfig& m = config.model;
  const double head_weights = static_cast<double>(padded_vocab(m)) * m.hidden;
  return 6.0 * head_weights +
         sum_over_layers(m, 0, m.layers, [&](const LayerSpec& layer) { return layer.flops_per_token(work); });
}

}  // namespace tri
