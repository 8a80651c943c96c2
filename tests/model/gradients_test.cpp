// The whole model, forward and backward, for every combination of the family's switches, against a float64 reference
// and its finite differences.
#include <gtest/gtest.h>

#include "lib/model/block.h"
#include "tests/model/initial_values.h"
#include "tests/model/reference.h"
#include "tests/train/one_rank.h"

namespace tri::test {
namespace {

constexpr int kSwitches = 8;

Config config_of(int combination) {
  const auto bit = [&](int i) { return (combination >> i & 1) != 0; };
  Config c = tiny_config();
  c.model.norm = bit(0) ? Norm::kRmsNorm : Norm::kLayerNorm;
  c.model.activation = bit(1)   ? (bit(4) ? Activation::kGeglu : Activation::kSwiglu)
                       : bit(7) ? Activation::kGeluErf
                                : Activation::kGelu;
  c.model.position = bit(2) ? Position::kRope : Position::kLearned;
  c.model.kv_heads = bit(3) ? 2 : 4;
  c.model.head_dim = bit(3) ? 4 : 0;  // twice the default, 8 / 4
  c.model.qk_norm = !bit(2) || !bit(7) ? QkNorm::kNone : bit(6) ? QkNorm::kFull : QkNorm::kHead;
  c.model.window = bit(4) ? 3 : 0;
  c.model.block = bit(5) ? Block::kParallel : Block::kSequential;
  if (bit(5) && bit(0)) c.model.parallel_norms = 2;
  if (!bit(5)) {
    if (bit(0) && bit(4)) c.model.norm_position = NormPosition::kPost;
    if (bit(1) && bit(6)) c.model.norm_position = NormPosition::kBoth;
  }
  if (bit(0) && bit(1) && c.model.qk_norm != QkNorm::kFull) c.model.norm_offset = 1;
  if (bit(1) && bit(3)) c.model.attention_scale = 0.8;
  if (bit(3) && bit(4)) c.model.attention_softcap = 0.3;
  if (bit(0) && bit(6)) c.model.logit_softcap = 0.7;
  if (bit(1) && bit(7)) c.model.embedding_scale = 1.7;
  if (bit(4) && bit(6)) {
    c.model.layer_pattern = {LayerAttention::kWindow, LayerAttention::kFull};
    if (bit(2)) c.model.rope_theta_local = 10;
  }
  c.model.tie_embeddings = bit(6);
  c.model.bias = bit(7);
  if (bit(4)) c.model.qkv_bias = bit(7) ? AutoFlag::kFalse : AutoFlag::kTrue;
  if (bit(2)) {
    c.model.rope_scaling = bit(5) ? (bit(6) ? RopeScaling::kYarn : RopeScaling::kLlama3)
                                  : (bit(6) ? RopeScaling::kLinear : RopeScaling::kNone);
    if (c.model.rope_scaling != RopeScaling::kNone) c.model.rope_factor = 8;
    if (bit(3) && bit(0)) c.model.rope_fraction = 0.5;  // of head_dim 4
    c.model.rope_original_seq_len = 4;
    c.model.rope_low_freq_factor = 0.25;  // of 4 tokens, in which a pair rotates less than once
    c.model.rope_high_freq_factor = 1;
    c.model.rope_beta_fast = 0.5;
    c.model.rope_beta_slow = 0.1;
  }
  c.parallel.zero = 0;
  c.optimizer.clip = 0;
  return c;
}

std::string name_of(const Config& c) {
  const ModelConfig& m = c.model;
  return fmt::format(
      "{} {} {} {} kv_heads {} head_dim {} window {} of {} layers {} norms {} + {}{}{} qkv_bias {} scale {} caps {} {} "
      "embedding {}",
      enum_name(m.norm), enum_name(m.activation), enum_name(m.position), enum_name(m.rope_scaling), m.kv_heads,
      m.head_dim, m.window, m.layer_pattern.empty() ? "all" : "some", enum_name(m.block),
      m.parallel_norms == 2 ? "two" : enum_name(m.norm_position), m.norm_offset, m.tie_embeddings ? " tied" : "",
      m.bias ? " bias" : "", enum_name(m.qkv_bias), m.attention_scale, m.attention_softcap, m.logit_softcap,
      m.embedding_scale);
}

// Changes every parameter from its special initial value: norms of exactly 1 and biases of exactly 0 hide errors.
ParameterValues shake(OneRank& rank) {
  ParameterValues values;
  for (const Parameter& parameter : rank.parameters()) {
    float* data = parameter.weight.as<float>();
    const uint64_t key = derive_key(5, parameter.spec.name);
    const int64_t rows = parameter.spec.shape[0], row = parameter.weight.numel() / rows;
    Doubles& list = values[parameter.spec.name];
    for (int64_t i = 0; i < parameter.weight.numel(); ++i) {
      const bool padding = parameter.spec.valid_rows >= 0 && i / row >= parameter.spec.valid_rows;
      if (!padding) data[i] += 0.2f * random_normal(key, static_cast<uint64_t>(i));
      list.push_back(data[i]);
    }
  }
  return values;
}

// Compares a step's loss, gradients (two elements of each parameter) and gradient norm with the reference.
void expect_reference(const Config& config, uint64_t draws) {
  OneRank rank(config);
  SCOPED_TRACE(name_of(rank.config));
  ParameterValues values = shake(rank);
  const ReferenceModel reference(rank.config);
  const std::vector<int32_t> inputs = rank.tokens(0, 0), targets = rank.tokens(0, 1);
  const int T = rank.config.model.seq_len, samples = rank.config.data.global_batch;
  const auto mean_loss = [&](bool with_routers) {
    double sum = 0, routers = 0;
    for (int s = 0; s < samples; ++s)
      sum += reference.loss(values, inputs.data() + s * T, targets.data() + s * T, &routers);
    return (sum + (with_routers ? routers : 0)) / (samples * T);
  };

  const double expected_loss = mean_loss(false), routers = mean_loss(true) - expected_loss;
  const StepResult result = rank.step(0);
  ASSERT_NEAR(result.loss, expected_loss, 2e-6 * expected_loss);
  double reported = 0;
  for (const RouterNumbers& layer : result.routers) reported += layer.aux_loss + layer.z_loss;
  ASSERT_NEAR(reported, routers, 1e-5 * routers);

  double norm_sq = 0;
  for (const auto& [name, gradient] : rank.gradients()) {
    double size = 0;
    for (const float g : gradient) size += double{g} * g;
    norm_sq += size;
    const double scale = std::sqrt(size / static_cast<double>(gradient.size())) + 1e-6;
    for (uint64_t draw = 0; draw < 2; ++draw) {
      const size_t i = random_u64(derive_key(draws, name), draw) % gradient.size();
      constexpr double kStep = 1e-4;
      double& element = values.at(name)[i];
      const double kept = element;
      element = kept + kStep;
      const double above = mean_loss(true);
      element = kept - kStep;
      const double below = mean_loss(true);
      element = kept;
      ASSERT_NEAR(gradient[i], (above - below) / (2 * kStep), 2e-4 * scale + 2e-5 * std::abs(gradient[i]))
          << name << "[" << i << "]";
    }
  }
  ASSERT_NEAR(result.grad_norm, std::sqrt(norm_sq), 1e-5 * std::sqrt(norm_sq));
}

TEST(ModelGradients, equal_finite_differences_for_every_combination_of_switches) {
  for (int combination = 0; combination < 1 << kSwitches; ++combination)
    expect_reference(config_of(combination), static_cast<uint64_t>(combination));
}

TEST(ModelGradients, equal_finite_differences_with_experts) {
  for (int combination = 0; combination < 1 << 5; ++combination) {
    const auto bit = [&](int i) { return (combination >> i & 1) != 0; };
    Config c = config_of(bit(0) ? 7 : 5);  // RMSNorm and RoPE, with or without SwiGLU
    c.data.micro_batch = 1;                // of which the auxiliary loss is a function
    c.model.experts = 4;
    c.model.expert_hidden = 16;
    c.model.router = bit(1) ? Router::kSigmoid : Router::kSoftmax;
    c.model.router_renormalize = bit(2);
    c.model.router_scale = bit(1) ? 2.5 : 1;
    if (bit(1) && bit(3)) c.model.router_groups = 2;
    c.model.shared_experts = bit(3) ? 2 : 0;
    c.model.dense_layers = bit(4) ? 1 : 0;
    c.model.aux_loss = bit(4) ? 0.3 : 0;
    c.model.router_z_loss = bit(3) ? 0.2 : 0;
    if (bit(2) && bit(3)) c.model.norm_position = bit(4) ? NormPosition::kPost : NormPosition::kBoth;
    for (const Recompute recompute : {Recompute::kNone, Recompute::kNorms, Recompute::kSelective, Recompute::kFull}) {
      c.parallel.recompute = recompute;
      expect_reference(c, static_cast<uint64_t>(combination));
    }
  }
}

TEST(ModelGradients, padded_vocabulary_stays_zero) {
  for (const OptimizerRow& row : optimizers()) {
    Config c = tiny_config();
    c.optimizer.name = row.kind;
    OneRank rank(c);
    for (int step = 0; step < 3; ++step) rank.step(step);
    const auto table = rank.weights().at(weight_of(modules::kTokens));
    ASSERT_EQ(table.size(), 128u * 8);
    for (size_t i = 0; i < table.size(); ++i) EXPECT_EQ(table[i] == 0.0f, i >= 11u * 8) << i;
  }
}

TEST(Recompute, every_kind_gives_the_same_bits) {
  for (const int combination : {0, 0b11111111, 0b00100000, 0b11010110, 0b00101011, 0b00010001}) {
    std::vector<StepResult> results[4];
    std::map<std::string, std::vector<float>> weights[4];
    int kind = 0;
    for (const Recompute recompute : {Recompute::kNone, Recompute::kNorms, Recompute::kSelective, Recompute::kFull}) {
      Config c = config_of(combination);
      c.parallel.recompute = recompute;
      OneRank rank(c);
      for (int step = 0; step < 3; ++step) results[kind].push_back(rank.step(step));
      weights[kind++] = rank.weights();
    }
    for (const int other : {1, 2, 3}) {
      for (size_t step = 0; step < 3; ++step) {
        EXPECT_EQ(results[0][step].loss, results[other][step].loss) << combination;
        EXPECT_EQ(results[0][step].grad_norm, results[other][step].grad_norm) << combination;
      }
      EXPECT_EQ(weights[0], weights[other]) << combination;
    }
  }
}

TEST(Recompute, saves_memory) {
  const auto in_flight = [](Recompute recompute) {
    Config c = tiny_config();
    c.model.layers = 8;
    c.parallel.recompute = recompute;
    const OneRank rank(c);
    for (const auto& [name, bytes] : rank.arena->bytes_by_name())
      if (name == "activations in flight") return bytes;
    return int64_t{0};
  };
  EXPECT_LT(in_flight(Recompute::kFull), in_flight(Recompute::kSelective));
  EXPECT_LT(in_flight(Recompute::kSelective), in_flight(Recompute::kNorms));
  EXPECT_LT(in_flight(Recompute::kNorms), in_flight(Recompute::kNone));
}

TEST(InitialValues, any_tp_share_is_a_slice_of_the_full_tensor) {
  const ParamSpec specs[] = {
      {.name = "rows", .shape = {8, 5}, .split_dim = 0, .init = InitRule::kNormal, .init_std = 1},
      {.name = "columns", .shape = {3, 8}, .split_dim = 1, .init = InitRule::kNormal, .init_std = 1},
      {.name = "gates", .shape = {2, 8, 3}, .split_dim = 1, .init = InitRule::kNormal, .init_std = 1},
      {.name = "padded", .shape = {8, 4}, .split_dim = 0, .init = InitRule::kNormal, .init_std = 1, .valid_rows = 5},
      {.name = "replicated", .shape = {7}, .split_dim = -1, .init = InitRule::kNormal, .init_std = 1},
  };
  for (const ParamSpec& spec : specs) {
    const std::vector<float> full = initial_values(spec, {0, 1}, 9);
    for (const int tp : {2, 4})
      for (int rank = 0; rank < tp; ++rank) {
        const std::vector<float> part = initial_values(spec, {rank, tp}, 9);
        if (spec.split_dim < 0) {
          EXPECT_EQ(part, full);
          continue;
        }
        int64_t inner = 1, outer = 1;
        for (int d = 0; d < spec.split_dim; ++d) outer *= spec.shape[static_cast<size_t>(d)];
        for (size_t d = static_cast<size_t>(spec.split_dim) + 1; d < spec.shape.size(); ++d) inner *= spec.shape[d];
        const int64_t split = spec.shape[static_cast<size_t>(spec.split_dim)], local = split / tp;
        ASSERT_EQ(static_cast<int64_t>(part.size()), outer * local * inner);
        for (int64_t o = 0; o < outer; ++o)
          for (int64_t i = 0; i < local * inner; ++i)
            EXPECT_EQ(part[static_cast<size_t>(o * local * inner + i)],
                      full[static_cast<size_t>((o * split + rank * local) * inner + i)])
                << spec.name;
      }
  }
  const std::vector<float> padded = initial_values(specs[3], {0, 1}, 9);
  for (size_t i = 0; i < padded.size(); ++i) EXPECT_EQ(padded[i] == 0.0f, i >= 5u * 4);
  EXPECT_NE(initial_values(specs[0], {0, 1}, 9), initial_values(specs[0], {0, 1}, 10)) << "the seed does nothing";
}

TEST(Parameters, a_missing_weight_is_an_error_that_names_it_and_a_missing_bias_is_not) {
  const Config c = value_or_throw(resolve_config(tiny_config(), 1));
  std::vector<Parameter> parameters;
  for (const ParamSpec& spec : model_parameters(c)) parameters.push_back({.spec = spec});
  for (const Parameter& absent : parameters) {
    if (!absent.spec.name.starts_with("layers/1/")) continue;
    std::vector<Parameter> others;
    for (const Parameter& parameter : parameters)
      if (parameter.spec.name != absent.spec.name) others.push_back(parameter);
    std::string problem;
    try {
      TransformerBlock(1, others, c);
    } catch (const Fatal& error) {
      problem = error.what();
    }
    EXPECT_EQ(problem.find(absent.spec.name) != std::string::npos, !is_bias(absent.spec.name)) << absent.spec.name;
  }
}

}  // namespace
}  // namespace tri::test
