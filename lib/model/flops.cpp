#include "lib/model/flops.h"

#include <algorithm>

#include "lib/model/parameter.h"

namespace tri {
namespace {

// The mean over a sequence's queries.
double keys_per_query(const ModelConfig& m, AttentionWork work) {
  const double window = m.window > 0 ? std::min(m.window, m.seq_len) : m.seq_len;
  if (work == AttentionWork::kBand) return window;
  return window - window * (window - 1) / (2.0 * m.seq_len);  // the first W - 1 queries have fewer than W keys
}

}  // namespace

double model_flops_per_token(const Config& config, AttentionWork work) {
  const ModelConfig& m = config.model;
  const double head = head_size(m);
  const double attention_weights = (2.0 * m.heads + 2.0 * m.kv_heads) * head * m.hidden;
  const double mlp_weights = (m.activation == Activation::kSwiglu ? 3.0 : 2.0) * m.hidden * m.ffn_hidden;
  const double head_weights = static_cast<double>(padded_vocab(m)) * m.hidden;
  return 6.0 * (m.layers * (attention_weights + mlp_weights) + head_weights) +
         12.0 * m.layers * m.heads * head * keys_per_query(m, work);
}

}  // namespace tri
