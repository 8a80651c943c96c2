#include "lib/model/layer_spec.h"

#include "io/base/error.h"

namespace tri {

std::vector<int64_t> LinearSpec::weight_shape() const {
  std::vector<int64_t> shape = bias_shape();
  shape.push_back(inputs);
  return shape;
}

std::vector<int64_t> LinearSpec::bias_shape() const { return {outputs.begin(), outputs.begin() + num_outputs}; }

std::array<LinearSpec, 2> LayerSpec::linears(Branch branch) const {
  return branch == Branch::kAttention ? attention.linears() : mlp.linears();
}

std::vector<NormSpec> LayerSpec::norms(Branch branch) const {
  return branch == Branch::kAttention ? attention.norms() : std::vector<NormSpec>();
}

std::vector<LinearSpec> LayerSpec::linears() const {
  std::vector<LinearSpec> all;
  for (const Branch branch : kBranches)
    for (const LinearSpec& linear : linears(branch)) all.push_back(linear);
  return all;
}

double LayerSpec::weights() const {
  double sum = 0;
  for (const Branch branch : kBranches)
    for (const LinearSpec& linear : linears(branch)) sum += static_cast<double>(linear.weights());
  return sum;
}

double LayerSpec::flops_per_token(AttentionWork work) const {
  return 6.0 * weights() + attention.core_flops_per_token(work);
}

int64_t LayerSpec::widest_input(int tp) const {
  int64_t widest = 0;
  for (const Branch branch : kBranches)
    for (const LinearSpec& linear : linears(branch)) widest = std::max(widest, linear.k(tp));
  return widest;
}

WorkspaceDims LayerSpec::kernel_workspace(int tp) const {
  const AttentionShare a = share_of(attention, tp);
  return {.seq_len = attention.seq_len,
          .width = attention.hidden,
          .widest = std::max({attention.hidden, a.qkv_width, mlp.fc1_width() / tp}),
          .num_kv_heads = a.NKVl,
          .group = a.G,
          .order = a.order,
          .head_size = a.HS,
          .window = attention.window};
}

int layer_period(const ModelConfig&) { return 1; }

LayerSpec layer_spec(const ModelConfig& m, int layer) {
  TRI_REQUIRE(layer >= 0 && layer < m.layers, "layer {} is not in a model of {} layers", layer, m.layers);
  TRI_REQUIRE(m.head_dim > 0, "model.head_dim is not resolved");
  return {.attention = {.hidden = m.hidden,
                        .heads = m.heads,
                        .kv_heads = m.kv_heads,
                        .head_dim = m.head_dim,
                        .seq_len = m.seq_len,
                        .window = m.window,
                        .rope = m.position == Position::kRope,
                        .qk_norm = m.qk_norm == QkNorm::kHead,
                        .norm_eps = m.norm_eps,
                        .bias = has_qkv_bias(m),
                        .output_bias = m.bias && m.block == Block::kSequential},  // else fc2's serves both branches
          .mlp = {.hidden = m.hidden, .ffn_hidden = m.ffn_hidden, .activation = m.activation, .bias = m.bias}};
}

}  // namespace tri
