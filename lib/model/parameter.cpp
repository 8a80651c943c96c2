#include "lib/model/parameter.h"

#include <algorithm>
#include <cmath>

#include "io/base/random.h"
#include "lib/model/fp8_tensors.h"
#include "lib/model/layer_division.h"
#include "lib/schedule/plan.h"

namespace tri {
namespace {

int64_t product(const std::vector<int64_t>& shape) {
  int64_t count = 1;
  for (const int64_t extent : shape) count *= extent;
  return count;
}

const Parameter* find(const std::vector<Parameter>& parameters, const std::string& name) {
  const auto at = std::ranges::find(parameters, name, [](const Parameter& parameter) { return parameter.spec.name; });
  return at == parameters.end() ? nullptr : &*at;
}

// Builds the specs of one chunk; each kind of layer has a function.
class ListBuilder {
 public:
  explicit ListBuilder(const Config& config)
      : config_(config),
        m_(config.model),
        layers_(layers_of_model(config)),
        slots_(config),
        separates_(config.parallel.zero == 2 && splits_backward(config.parallel.schedule)) {}
  std::vector<ParamSpec> take() { return std::move(specs_); }

  void embedding(bool tied_over_stages) {
    token_table(weight_of(modules::kTokens), tied_over_stages ? kTied : kOwn, false);
    if (m_.position == Position::kLearned) {
      replicated(weight_of(modules::kPositions), {m_.seq_len, m_.hidden}, InitRule::kNormal, true);
      specs_.back().undelayed = separates_;
    }
  }

  void layer(int layer) {
    int index = 0;
    for (const ModuleSpec& module : layers_[layer].modules()) {
      if (const auto* spec = std::get_if<NormSpec>(&module)) norm(*spec, layer);
      if (const auto* spec = std::get_if<LinearSpec>(&module)) linear(*spec, layer, index++);
    }
  }

  // `holds_embedding`: a tied head on the rank of the embedding uses the table itself.
  void head(bool holds_embedding) {
    norm(stream_norm(m_, modules::kFinalNorm), kNoLayer);
    if (!m_.tie_embeddings) return token_table(weight_of(modules::kHead), kOwn, false);
    if (!holds_embedding) token_table(weight_of(modules::kTokens), kTied, true);
  }

 private:
  // Gradients are summed over ranks that process different tokens. A tied table is used on two ranks. A parameter that
  // is not sharded over tp is used by each tp rank for other rows.
  static constexpr AxisSet kOwn = kTokenAxes, kTied = kTokenAxes | AxisSet{"pp"},
                           kUnsharded = kTokenAxes | AxisSet{"tp"};

  void token_table(const std::string& name, AxisSet reduced, bool tied_copy) {
    specs_.push_back({.name = name,
                      .shape = {padded_vocab(m_), m_.hidden},
                      .split_dim = 0,
                      .sharded = {"tp"},
                      .reduced = reduced,
                      .init = InitRule::kNormal,
                      .init_std = static_cast<float>(m_.init_std),
                      .valid_rows = m_.vocab,
                      .decay = true,
                      .tied_copy = tied_copy,
                      .undelayed = separates_});
  }
  void matrix(const std::string& name, std::vector<int64_t> shape, int split_dim, double std) {
    specs_.push_back({.name = name,
                      .shape = std::move(shape),
                      .split_dim = split_dim,
                      .sharded = {"tp"},
                      .reduced = kOwn,
                      .init = InitRule::kNormal,
                      .init_std = static_cast<float>(std),
                      .valid_rows = -1,
                      .decay = true,
                      .tied_copy = false});
  }
  // `index`: position in the layer's list of linears.
  void linear(const LinearSpec& linear, int layer, int index) {
    // Weights whose output joins the residual stream start smaller, so that its variance does not grow with depth
    // (Radford et al. 2019).
    const double std = linear.split == LinearSplit::kRow ? m_.init_std / std::sqrt(2.0 * m_.layers) : m_.init_std;
    matrix(weight_of(linear.module, layer), linear.weight_shape(), linear.split_dim(), std);
    specs_.back().muon = config_.optimizer.name == OptimizerKind::kMuon && linear.orthogonal;
    if (keeps_fp8_weights(config_) && layers_[layer].fp8 && linear.fp8)
      specs_.back().fp8_slot = slots_.of(Fp8Operand::kWeight, layer, index);
    if (linear.whole) {
      TRI_REQUIRE(!linear.bias, "{} has a bias, which whole linears do not support", linear.name);
      ParamSpec& spec = specs_.back();
      spec.experts = linear.experts > 0;
      spec.split_dim = spec.experts ? 0 : -1;
      spec.sharded = spec.experts ? AxisSet{"ep"} : AxisSet{};
      spec.reduced = spec.experts ? AxisSet{"edp"} : kRowAxes;
      spec.undelayed = separates_ && linear.module == modules::kExpertsFc2;
      return;
    }
    if (specs_.back().muon) specs_.back().interleaved = linear.interleaved;
    if (!linear.bias) return;
    const std::string name = bias_of(linear.module, layer);
    if (linear.split == LinearSplit::kRow) return replicated(name, linear.bias_shape(), InitRule::kZeros, false);
    matrix(name, linear.bias_shape(), linear.split_dim(), 0.0);
    specs_.back().init = InitRule::kZeros;
    specs_.back().decay = false;
  }
  void replicated(const std::string& name, std::vector<int64_t> shape, InitRule init, bool decay) {
    matrix(name, std::move(shape), -1, m_.init_std);
    specs_.back().sharded = {};
    specs_.back().reduced = kUnsharded;
    specs_.back().init = init;
    specs_.back().decay = decay;
  }
  void norm(const NormSpec& norm, int layer) {
    // Weight and offset add up to 1.
    replicated(weight_of(norm.module, layer), {norm.width}, m_.norm_offset == 1 ? InitRule::kZeros : InitRule::kOnes,
               false);
    if (norm.sharded) {
      specs_.back().split_dim = 0;
      specs_.back().sharded = {"tp"};
      specs_.back().reduced = kOwn;
    }
    if (norm.bias) replicated(bias_of(norm.module, layer), {norm.width}, InitRule::kZeros, false);
  }

  const Config& config_;
  const ModelConfig& m_;
  const Layers layers_;
  const Fp8Slots slots_;
  const bool separates_;  // ParamSpec::undelayed is set
  std::vector<ParamSpec> specs_;
};

}  // namespace

int64_t ParamSpec::numel() const { return product(shape); }

std::vector<int64_t> ParamSpec::local_shape(int shards) const {
  std::vector<int64_t> local = shape;
  if (split_dim >= 0) {
    TRI_REQUIRE(local[split_dim] % shards == 0, "{}: {} not divisible by {} shards over {}", name, local[split_dim],
                shards, to_string(sharded));
    local[split_dim] /= shards;
  }
  return local;
}

int64_t ParamSpec::local_numel(int shards) const { return product(local_shape(shards)); }

const Parameter* find_bias(const std::vector<Parameter>& parameters, std::string_view module, int layer) {
  return find(parameters, bias_of(module, layer));
}

const Parameter* find_weight(const std::vector<Parameter>& parameters, std::string_view module, int layer) {
  const std::string name = weight_of(module, layer);
  const Parameter* weight = find(parameters, name);
  TRI_REQUIRE(weight != nullptr, "parameter {} is not among the {} parameters", name, parameters.size());
  return weight;
}

std::vector<ParamSpec> chunk_parameters(const Config& config, Axis pp, int chunk) {
  ListBuilder list(config);
  pp.folded = folds(config.parallel.schedule);
  const bool one_rank_has_both_ends = pp.end() == 0;
  if (is_first_virtual_stage(pp, chunk)) list.embedding(config.model.tie_embeddings && !one_rank_has_both_ends);
  const LayerRange layers = layers_of(config, pp, chunk);
  for (int layer = layers.first; layer < layers.first + layers.count; ++layer) list.layer(layer);
  if (is_last_virtual_stage(pp, chunk, config.parallel.chunks)) list.head(one_rank_has_both_ends);
  return list.take();
}

std::vector<ParamSpec> model_parameters(const Config& config) {
  ListBuilder list(config);
  list.embedding(false);
  for (int layer = 0; layer < config.model.layers; ++layer) list.layer(layer);
  list.head(true);
  return list.take();
}

NormalValues normal_start(const ParamSpec& spec, Axis shard, uint64_t seed) {
  TRI_REQUIRE(spec.init == InitRule::kNormal, "parameter {} is not initialized with normal numbers", spec.name);
  // View the tensor as (outer, split, inner): a shard is `split / shards` consecutive entries of the middle one.
  int64_t inner = 1;
  const int split_dim = spec.split_dim < 0 ? 0 : spec.split_dim;
  for (size_t d = split_dim + 1; d < spec.shape.size(); ++d) inner *= spec.shape[d];
  const int64_t local_split = spec.local_shape(shard.size)[split_dim];
  const int64_t block = local_split * inner;  // consecutive here and in the full tensor
  return {.key = derive_key(seed, spec.name),
          .scale = spec.init_std,
          .block = block,
          .stride = spec.shape[split_dim] * inner,
          .offset = spec.split_dim < 0 ? 0 : shard.rank * block,
          .valid = spec.valid_rows < 0 ? spec.numel() : spec.valid_rows * (spec.numel() / spec.shape[0])};
}

}  // namespace tri
