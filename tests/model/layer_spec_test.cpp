// The list of layers compared with the parameter list and the published sizes of models.
#include "lib/model/layer_spec.h"

#include <fmt/ranges.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>

#include "lib/model/fp8_tensors.h"
#include "lib/model/moe.h"
#include "lib/model/parameter.h"

namespace tri {
namespace {

Config config_of(int head_dim, Activation activation) {
  Config c;
  c.model = {.layers = 3, .hidden = 64, .heads = 8, .head_dim = head_dim, .kv_heads = 2, .activation = activation};
  c.model.vocab = 256;
  c.model.seq_len = 16;
  c.data.global_batch = c.data.micro_batch = 1;
  return value_or_throw(resolve_config(c, 1));
}

TEST(LayerSpec, linears_are_the_matrices_of_the_parameter_list_in_their_order) {
  for (const int head_dim : {0, 32})
    for (const Activation activation : {Activation::kGelu, Activation::kSwiglu}) {
      const Config config = config_of(head_dim, activation);
      std::vector<ParamSpec> matrices;
      for (const ParamSpec& spec : model_parameters(config))
        if (spec.decay && spec.name.starts_with("layers/")) matrices.push_back(spec);
      size_t next = 0;
      double weights = 0;
      const Layers layers = layers_of_model(config);
      for (int layer = 0; layer < config.model.layers; ++layer)
        for (const LinearSpec& linear : layers[layer].linears()) {
          ASSERT_LT(next, matrices.size());
          const ParamSpec& spec = matrices[next++];
          EXPECT_EQ(spec.name, weight_of(linear.module, layer));
          EXPECT_EQ(spec.numel(), linear.weights());
          EXPECT_EQ(spec.split_dim, linear.split_dim());
          EXPECT_EQ(spec.local_numel(2), linear.n(2) * linear.k(2)) << "one dim is divided over tp";
          weights += static_cast<double>(linear.weights());
        }
      EXPECT_EQ(next, matrices.size());
      EXPECT_EQ(layers.sum(layers.all(), [](const LayerSpec& layer) { return layer.weights(); }), weights);
    }
}

TEST(LayerSpec, experts_are_whole_matrices_on_the_ranks_that_divide_them) {
  Config config = config_of(0, Activation::kSwiglu);
  config.model.bias = false;
  config.model.experts = 8;
  config.model.expert_hidden = 64;
  config.model.shared_experts = config.model.dense_layers = 1;
  config.model.layers = 2;
  std::map<std::string, ParamSpec> specs;
  for (const ParamSpec& spec : model_parameters(config)) specs[spec.name] = spec;
  EXPECT_TRUE(specs.contains("layers/0/mlp/fc1/weight")) << "a dense layer";
  EXPECT_FALSE(specs.contains("layers/1/mlp/fc1/weight"));
  const int64_t C = config.model.hidden;
  const ParamSpec fc1 = specs.at("layers/1/mlp/experts/fc1/weight");
  EXPECT_EQ(fc1.shape, (std::vector<int64_t>{8, 2, 64, C}));
  const Mesh mesh = make_mesh(1, {{"tp", 2}, {"dp", 2}, {"ep", 4}});
  EXPECT_EQ(fc1.local_shape(mesh), (std::vector<int64_t>{2, 2, 64, C}));
  EXPECT_EQ(fc1.local_tensors(mesh), 2);
  EXPECT_EQ(fc1.reduced, AxisSet{"edp"});
  for (const std::string name : {"router", "shared/fc1", "shared/fc2"}) {
    const ParamSpec& spec = specs.at("layers/1/mlp/" + name + "/weight");
    EXPECT_EQ(spec.local_numel(mesh), spec.numel()) << name;
    EXPECT_EQ(spec.reduced, kRowAxes) << name;
  }
}

// Two ranks of 64 rows, each for one expert: 128 rows on a rank at most.
TEST(Experts, the_capacity_that_an_error_names_is_no_larger_than_the_worst_case) {
  Config config;
  config.model.experts = 8;
  config.model.experts_per_token = 1;
  config.model.seq_len = 64;
  config.data.micro_batch = config.parallel.tp = config.parallel.cp = 1;
  config.parallel.ep = 2;
  const auto of_rows = [&](int64_t rows) { return to_string(RowShortage{.rows = rows}, config); };
  EXPECT_NE(of_rows(80).find("set parallel.ep_capacity to 1.5 or more"), std::string::npos) << of_rows(80);
  EXPECT_NE(of_rows(120).find("set parallel.ep_capacity to 2.0 or more"), std::string::npos) << of_rows(120);
}

// 3 does not divide the 64 pairs of a rank.
TEST(Experts, chosen_in_turn_have_memory_for_their_rows_with_the_least_capacity) {
  for (const int ep : {1, 2, 3, 5, 6})
    for (const size_t per_token : {1U, 2U, 8U}) {
      const MoeSpec moe{.experts = 30, .per_token = static_cast<int64_t>(per_token)};
      const int64_t local_rows = 32;
      std::vector<int64_t> rows(static_cast<size_t>(ep));
      for (int rank = 0; rank < ep; ++rank) {
        const std::vector<int32_t> experts = experts_in_turn(moe, local_rows, {rank, ep});
        ASSERT_EQ(static_cast<int64_t>(experts.size()), local_rows * moe.per_token);
        for (const int32_t expert : experts) ++rows.at(static_cast<size_t>(expert / (moe.experts / ep)));
        for (size_t row = 0; row < experts.size(); row += per_token)
          EXPECT_EQ(std::set<int32_t>(&experts[row], &experts[row] + per_token).size(), per_token) << row;
      }
      EXPECT_LE(std::ranges::max(rows), expert_rows(moe, local_rows, ep, 1)) << "ep " << ep << ", K " << per_token;
      EXPECT_EQ(std::ranges::min(rows), local_rows * moe.per_token);
    }
}

TEST(LayerSpec, modules_are_the_parameters_of_a_layer_in_their_order) {
  for (const Block block : {Block::kSequential, Block::kParallel})
    for (const Norm norm : {Norm::kLayerNorm, Norm::kRmsNorm})
      for (const QkNorm qk_norm : {QkNorm::kNone, QkNorm::kHead}) {
        Config config = config_of(0, Activation::kSwiglu);
        config.model.block = block;
        config.model.norm = norm;
        config.model.bias = true;
        config.model.position = Position::kRope;
        config.model.qk_norm = qk_norm;
        std::vector<std::string> listed, expected;
        for (const ParamSpec& spec : model_parameters(config))
          if (spec.name.starts_with("layers/1/")) listed.push_back(spec.name);
        for (const ModuleSpec& module : layers_of_model(config)[1].modules()) {
          const auto [name, bias] =
              std::visit([](const auto& spec) { return std::pair(spec.module, spec.bias); }, module);
          expected.push_back(weight_of(name, 1));
          if (bias) expected.push_back(bias_of(name, 1));
        }
        EXPECT_EQ(listed, expected);
        EXPECT_EQ(listed.front(), weight_of(modules::kNorm1, 1));
        EXPECT_EQ(std::ranges::count(listed, weight_of(modules::kNorm2, 1)), block == Block::kSequential ? 1 : 0);
      }
}

TEST(LayerSpec, norms_stand_before_or_after_their_branches_or_both) {
  const auto norms = [](NormPosition position, QkNorm qk_norm) {
    Config config = config_of(0, Activation::kSwiglu);
    config.model.bias = false;
    config.model.qkv_bias = AutoFlag::kFalse;
    config.model.position = Position::kRope;
    config.model.norm_position = position;
    config.model.qk_norm = qk_norm;
    std::vector<std::string> names;
    for (const ParamSpec& spec : model_parameters(config))
      if (spec.name.starts_with("layers/1/") && !spec.decay)
        names.push_back(spec.name.substr(9, spec.name.size() - 9 - 7) + (spec.sharded.empty() ? "" : ", sharded"));
    return names;
  };
  using Names = std::vector<std::string>;
  EXPECT_EQ(norms(NormPosition::kPre, QkNorm::kNone), (Names{"norm1", "norm2"}));
  EXPECT_EQ(norms(NormPosition::kPost, QkNorm::kFull),
            (Names{"attention/query_norm, sharded", "attention/key_norm, sharded", "post_norm1", "post_norm2"}));
  EXPECT_EQ(norms(NormPosition::kBoth, QkNorm::kHead),
            (Names{"norm1", "attention/query_norm", "attention/key_norm", "post_norm1", "norm2", "post_norm2"}));
}

TEST(LayerSpec, linears_share_casts_of_the_rows_and_gradients_that_they_share) {
  Config config = config_of(0, Activation::kGelu);
  const auto shared = [&] {
    const LayerSpec layer = layers_of_model(config)[0];
    std::vector<std::pair<int, int>> casts;  // of each linear: of its input, of the gradient of its output
    for (const LinearPlace place : kLinearPlaces) {
      const LinearId id = layer.id(0, place.branch, layer.linear(place));
      casts.emplace_back(id.input, id.gradient);
    }
    return casts;
  };
  EXPECT_EQ(shared(), (std::vector<std::pair<int, int>>{{0, 0}, {1, 1}, {2, 2}, {3, 3}}));
  config.model.block = Block::kParallel;
  EXPECT_EQ(shared(), (std::vector<std::pair<int, int>>{{0, 0}, {1, 3}, {0, 2}, {3, 3}}));
  config.model.parallel_norms = 2;
  EXPECT_EQ(shared(), (std::vector<std::pair<int, int>>{{0, 0}, {1, 3}, {2, 2}, {3, 3}})) << "of two norms";
  config.model.block = Block::kSequential;
  config.model.norm_position = NormPosition::kPost;
  EXPECT_EQ(shared(), (std::vector<std::pair<int, int>>{{0, 0}, {1, 1}, {2, 2}, {3, 3}})) << "of the stream";
}

TEST(LayerSpec, the_width_of_a_head_is_a_field_of_its_own) {
  EXPECT_EQ(config_of(0, Activation::kGelu).model.head_dim, 8) << "derived: 64 / 8";
  const AttentionSpec attention = layers_of_model(config_of(32, Activation::kGelu))[0].attention;
  EXPECT_EQ(attention.width(), 8 * 32);
  EXPECT_EQ(attention.qkv_width(), (8 + 2 * 2) * 32);
  Config odd;
  odd.model = {.hidden = 64, .heads = 6};
  const auto refused = resolve_config(odd, 1);
  ASSERT_FALSE(refused);
  EXPECT_NE(refused.error().message.find("or set model.head_dim"), std::string::npos) << refused.error().message;
  odd.model.head_dim = 16;
  EXPECT_TRUE(resolve_config(odd, 1));
}

TEST(LayerSpec, a_pattern_gives_layers_windows_and_angles_of_their_own) {
  Config config = config_of(0, Activation::kGeglu);
  ModelConfig& m = config.model;
  m.layers = 7;
  m.position = Position::kRope;
  m.window = 4;
  m.rope_theta_local = 100;
  m.layer_pattern = {LayerAttention::kWindow, LayerAttention::kWindow, LayerAttention::kFull};
  const Layers layers = layers_of_model(value_or_throw(resolve_config(config, 1)));
  EXPECT_EQ(layers.kinds.size(), 2u);
  for (int layer = 0; layer < m.layers; ++layer) {
    const bool local = layer % 3 != 2;
    EXPECT_EQ(layers[layer].attention.window, local ? 4 : 0) << layer;
    EXPECT_EQ(layers[layer].attention.local_rope, local) << layer;
    EXPECT_TRUE(layers[layer].same_sizes(layers[0])) << layer;
  }
  m.layer_pattern.clear();
  m.rope_theta_local = 0;
  EXPECT_EQ(layers_of_model(config).kinds.size(), 1u);
}

TEST(LayerSpec, queries_keys_and_values_may_have_biases_alone) {
  const auto biases = [](bool all, AutoFlag qkv) {
    Config config = config_of(0, Activation::kSwiglu);
    config.model.bias = all;
    config.model.qkv_bias = qkv;
    config = value_or_throw(resolve_config(config, 1));
    std::vector<bool> list;
    for (const LinearSpec& linear : layers_of_model(config)[0].linears()) list.push_back(linear.bias);
    int64_t elements = 0;
    for (const ParamSpec& spec : model_parameters(config))
      if (spec.name == bias_of(modules::kQkv, 0)) elements += spec.numel();
    EXPECT_EQ(elements, list[0] ? (8 + 2 * 2) * 8 : 0);
    return list;
  };
  EXPECT_EQ(biases(false, AutoFlag::kTrue), (std::vector<bool>{true, false, false, false}));
  EXPECT_EQ(biases(true, AutoFlag::kFalse), (std::vector<bool>{false, true, true, true}));
  EXPECT_EQ(biases(false, AutoFlag::kAuto), (std::vector<bool>(4, false)));
  EXPECT_EQ(biases(true, AutoFlag::kAuto), (std::vector<bool>(4, true)));
}

// Qwen3 32B: 64 heads of 128 with a width of 5120; 31.2 B parameters without the embeddings, as its model card says.
TEST(LayerSpec, weights_of_a_published_model_with_wide_heads) {
  ModelConfig m;
  m.layers = 64;
  m.hidden = 5120;
  m.heads = 64;
  m.kv_heads = 8;
  m.head_dim = 128;
  m.ffn_hidden = 25600;
  m.activation = Activation::kSwiglu;
  const Layers layers = layers_of_model(m, {});
  EXPECT_NEAR(layers.sum(layers.all(), [](const LayerSpec& layer) { return layer.weights(); }), 31.2e9, 0.05e9);
}

// fp8_obstacles names config fields, whereas lib/config does not know layers.
TEST(LayerSpec, fp8_obstacles_are_linears_whose_sizes_on_a_rank_are_no_multiples) {
  int fitting = 0, refused = 0;
  for (const int hidden : {64, 72})
    for (const int head_dim : {8, 12, 16})
      for (const int kv_heads : {4, 8})
        for (const int ffn_hidden : {64, 96, 176})
          for (const Activation activation : {Activation::kGelu, Activation::kSwiglu})
            for (const int micro_batch : {1, 2})
              for (const int tp : {1, 2, 4}) {
                ModelConfig m;
                m.hidden = hidden;
                m.heads = 8;
                m.kv_heads = kv_heads;
                m.head_dim = head_dim;
                m.ffn_hidden = ffn_hidden;
                m.activation = activation;
                m.seq_len = 8;
                bool fit = micro_batch * m.seq_len % 16 == 0;
                for (const LinearSpec& linear : layers_of_model(m, {})[0].linears())
                  fit = fit && linear.n(tp) % 16 == 0 && linear.k(tp) % 16 == 0;
                const auto obstacles = fp8_obstacles(m, micro_batch, tp);
                EXPECT_EQ(obstacles.empty(), fit) << fmt::format("{}", fmt::join(obstacles, "; "));
                ++(fit ? fitting : refused);
              }
  EXPECT_GT(fitting, 0);
  EXPECT_GT(refused, 0);
}

TEST(Fp8Slots, name_every_operand_of_every_linear_once) {
  Config config = config_of(0, Activation::kGelu);
  EXPECT_EQ(Fp8Slots(config).count(), 0);
  config.precision.gemm = GemmFormat::kFp8;
  const Fp8Slots slots(config);
  EXPECT_EQ(slots.count(), 3 * 3 * 4);
  EXPECT_EQ(slots.name_of(slots.of(Fp8Operand::kInput, 0, 0)), "layers/0/attention/qkv/input");
  EXPECT_EQ(slots.name_of(slots.of(Fp8Operand::kWeight, 1, 2)), "layers/1/mlp/fc1/weight");
  EXPECT_EQ(slots.name_of(slots.of(Fp8Operand::kGradient, 2, 3)), "layers/2/mlp/fc2/gradient");
  EXPECT_EQ(slots.layer_of(slots.of(Fp8Operand::kGradient, 1, 3)), 1);
}

}  // namespace
}  // namespace tri
