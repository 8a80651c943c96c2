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

namespace {

LayerSpec layer_spec(const ModelConfig& m) {
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

}  // namespace

Layers layers_of_model(const ModelConfig& model, LayerRange fp8) {
  Layers layers;
  for (int layer = 0; layer < model.layers; ++layer) {
    LayerSpec spec = layer_spec(model);
    spec.fp8 = layer >= fp8.first && layer < fp8.first + fp8.count;
    const auto known = std::ranges::find(layers.kinds, spec);
    layers.kind_of.push_back(static_cast<int>(known - layers.kinds.begin()));
    if (known == layers.kinds.end()) layers.kinds.push_back(spec);
  }
  return layers;
}

Layers layers_of_model(const Config& config) {
  const PrecisionConfig& p = config.precision;
  const int inside = config.model.layers - p.fp8_first_layers - p.fp8_last_layers;
  return layers_of_model(config.model, {p.fp8_first_layers, p.gemm == GemmFormat::kFp8 ? inside : 0});
}

}  // namespace tri
