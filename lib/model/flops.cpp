#include "lib/model/flops.h"

#include "lib/model/parameter.h"

namespace tri {

double model_flops_per_token(const Config& config) {
  const ModelConfig& m = config.model;
  const double head = head_size(m);
  const double attention_weights = (2.0 * m.heads + 2.0 * m.kv_heads) * head * m.hidden;
  const double mlp_weights = (m.activation == Activation::kSwiglu ? 3.0 : 2.0) * m.hidden * m.ffn_hidden;
  const double head_weights = static_cast<double>(padded_vocab(m)) * m.hidden;
  return 6.0 * (m.layers * (attention_weights + mlp_weights) + head_weights) +
         12.0 * m.layers * m.heads * head * m.seq_len;
}

}  // namespace tri
