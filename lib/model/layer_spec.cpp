#include "lib/model/layer_spec.h"

#include "io/base/error.h"
#include "lib/model/parameter_names.h"

namespace tri {

std::vector<int64_t> LinearSpec::weight_shape() const {
  std::vector<int64_t> shape = bias_shape();
  if (experts > 0) shape.insert(shape.begin(), experts);
  shape.push_back(inputs);
  return shape;
}

std::vector<int64_t> LinearSpec::bias_shape() const { return {outputs.begin(), outputs.begin() + num_outputs}; }

std::vector<MatrixShape> LinearSpec::matrices() const {
  int64_t period = 0;
  for (const int64_t rows : interleaved) period += rows;
  if (period == 0)
    return std::vector<MatrixShape>((num_outputs == 2 ? outputs[0] : 1) * std::max<int64_t>(experts, 1),
                                    {outputs[num_outputs - 1], inputs});
  std::vector<MatrixShape> all;
  for (const int64_t rows : interleaved) all.push_back({n() / period * rows, inputs});
  return all;
}

std::vector<ModuleSpec> LayerSpec::modules(Branch branch) const {
  return visit(branch, [](const auto& spec) { return spec.modules(); });
}

std::vector<ModuleSpec> LayerSpec::modules() const {
  std::vector<ModuleSpec> all;
  for (const Branch branch : kBranches) {
    const auto add_norms = [&](NormPlace place) {
      for (const NormSpec& norm : norms)
        if (norm.branch == branch && norm.place == place) all.emplace_back(norm);
    };
    add_norms(NormPlace::kBefore);
    for (const ModuleSpec& module : modules(branch)) all.push_back(module);
    add_norms(NormPlace::kAfter);
  }
  return all;
}

LinearSpec LayerSpec::linear(LinearPlace place) const {
  const std::vector<LinearSpec> of_branch = linears(place.branch);
  return place.split == LinearSplit::kColumn ? of_branch.front() : of_branch.back();
}

// Branches that read the same norm share its cast, which is that of the norm's own branch. Outputs that are added to
// the same value of the stream share the cast of its gradient, which is that of the last branch.
LinearId LayerSpec::id(int layer, Branch branch, const LinearSpec& linear) const {
  const std::vector<LinearSpec> all = linears();
  const auto index_of = [&](const LinearSpec& wanted) {
    const auto at = std::ranges::find(all, wanted.module, &LinearSpec::module);
    TRI_REQUIRE(at != all.end(), "{} is not a linear of layer {}", wanted.module, layer);
    return static_cast<int>(at - all.begin());
  };
  const int index = index_of(linear);
  LinearId id{.layer = layer, .place = {branch, linear.split}, .index = index, .input = index, .gradient = index};
  const std::vector<LinearSpec> of_branch = linears(branch);
  if (linear.module == of_branch.front().module)
    id.input = index_of(this->linear({reads_with(branch), LinearSplit::kColumn}));
  if (linear.module == of_branch.back().module && !has_middle())
    id.gradient = index_of(this->linear({kBranches.back(), LinearSplit::kRow}));
  return id;
}

size_t LayerSpec::norm_before(Branch branch) const {
  size_t found = kNoNorm;
  for (size_t i = 0; i < norms.size(); ++i)
    if (norms[i].place == NormPlace::kBefore && norms[i].branch <= branch) found = i;
  return found;
}

size_t LayerSpec::norm_after(Branch branch) const {
  for (size_t i = 0; i < norms.size(); ++i)
    if (norms[i].place == NormPlace::kAfter && norms[i].branch == branch) return i;
  return kNoNorm;
}

int LayerSpec::output_norms() const {
  return static_cast<int>(std::ranges::count(norms, NormPlace::kAfter, &NormSpec::place));
}

int LayerSpec::gathered_rows() const {
  return static_cast<int>(
      std::ranges::count_if(kBranches, [&](Branch branch) { return reads_with(branch) == branch; }));
}

double LayerSpec::weights() const {
  double sum = 0;
  for (const Branch branch : kBranches)
    for (const LinearSpec& linear : linears(branch)) sum += static_cast<double>(linear.weights());
  return sum;
}

double LayerSpec::active_weights() const {
  double sum = 0;
  for (const Branch branch : kBranches)
    for (const LinearSpec& linear : linears(branch)) sum += static_cast<double>(linear.active_weights());
  return sum;
}

double LayerSpec::flops_per_token(AttentionWork work) const {
  return 6.0 * active_weights() + sum([&](const auto& branch) { return branch.core_flops_per_token(work); });
}

int64_t LayerSpec::widest_input(int tp) const {
  int64_t widest = 0;
  for (const Branch branch : kBranches)
    for (const LinearSpec& linear : linears(branch)) widest = std::max(widest, linear.k(tp));
  return widest;
}

WorkspaceDims LayerSpec::kernel_workspace(int tp) const {
  const AttentionShare a = share_of(attention, tp);
  int64_t widest = attention.hidden;
  for (const Branch branch : kBranches)
    widest = std::max(widest, visit(branch, [&](const auto& spec) { return spec.widest_output(tp); }));
  return {.seq_len = attention.seq_len,
          .width = attention.hidden,
          .widest = widest,
          .num_kv_heads = a.NKVl,
          .group = a.G,
          .order = a.order,
          .head_size = a.HS,
          .window = attention.window,
          .softcap = attention.softcap > 0,
          .documents = attention.documents};
}

NormSpec stream_norm(const ModelConfig& m, std::string_view module, Branch branch, NormPlace place) {
  return {.module = module,
          .width = m.hidden,
          .place = place,
          .branch = branch,
          .bias = m.norm == Norm::kLayerNorm && m.bias};
}

namespace {

// Whether attention and MLP read norms of their own, and have biases of their own.
bool has_second_norm(const ModelConfig& m) { return m.block == Block::kSequential || m.parallel_norms == 2; }

std::vector<NormSpec> layer_norms(const ModelConfig& m) {
  std::vector<NormSpec> norms;
  for (const Branch branch : kBranches) {
    const bool is_attention = branch == Branch::kAttention;
    if (m.norm_position != NormPosition::kPost && (is_attention || has_second_norm(m)))
      norms.push_back(stream_norm(m, is_attention ? modules::kNorm1 : modules::kNorm2, branch));
    if (m.norm_position != NormPosition::kPre)
      norms.push_back(
          stream_norm(m, is_attention ? modules::kPostNorm1 : modules::kPostNorm2, branch, NormPlace::kAfter));
  }
  return norms;
}

MoeSpec moe_spec(const ModelConfig& m) {
  if (m.experts == 0) return {};
  TRI_REQUIRE(m.expert_hidden > 0, "model.expert_hidden is not resolved");
  return {.hidden = m.hidden,
          .expert_hidden = m.expert_hidden,
          .shared_hidden = int64_t{m.shared_experts} * m.expert_hidden,
          .experts = m.experts,
          .per_token = m.experts_per_token,
          .activation = m.activation,
          .rule = {.kind = m.router,
                   .renormalize = m.router_renormalize,
                   .scale = static_cast<float>(m.router_scale),
                   .groups = m.router_groups,
                   .top_groups = m.router_top_groups},
          .first_layer = m.dense_layers};
}

LayerSpec layer_spec(const ModelConfig& m, int layer) {
  TRI_REQUIRE(m.head_dim > 0, "model.head_dim is not resolved");
  const auto& pattern = m.layer_pattern;
  const bool full = !pattern.empty() && pattern[static_cast<size_t>(layer) % pattern.size()] == LayerAttention::kFull;
  return {.attention = {.hidden = m.hidden,
                        .heads = m.heads,
                        .kv_heads = m.kv_heads,
                        .head_dim = m.head_dim,
                        .seq_len = m.seq_len,
                        .window = full ? 0 : m.window,
                        .rope = m.position == Position::kRope,
                        .qk_norm = m.qk_norm,
                        .norm_eps = m.norm_eps,
                        .norm_offset = static_cast<double>(m.norm_offset),
                        .local_rope = !full && m.rope_theta_local > 0,
                        .scale = m.attention_scale,
                        .softcap = m.attention_softcap,
                        .bias = has_qkv_bias(m),
                        .output_bias = m.bias && has_second_norm(m)},  // else fc2's serves both branches
          .mlp = {.hidden = m.hidden, .ffn_hidden = m.ffn_hidden, .activation = m.activation, .bias = m.bias},
          .moe = layer < m.dense_layers ? MoeSpec{} : moe_spec(m),
          .block = m.block,
          .norms = layer_norms(m)};
}

}  // namespace

int expert_layers(const ModelConfig& m) { return m.experts == 0 ? 0 : std::max(0, m.layers - m.dense_layers); }

Layers layers_of_model(const ModelConfig& model, LayerRange fp8) {
  Layers layers;
  for (int layer = 0; layer < model.layers; ++layer) {
    LayerSpec spec = layer_spec(model, layer);
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
  Layers layers = layers_of_model(config.model, {p.fp8_first_layers, p.gemm == GemmFormat::kFp8 ? inside : 0});
  for (LayerSpec& kind : layers.kinds) kind.attention.documents = config.data.document_mask;
  return layers;
}

}  // namespace tri
