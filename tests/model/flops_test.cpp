#include "lib/model/flops.h"

#include <gtest/gtest.h>

#include <algorithm>

namespace tri {
namespace {

Config gpt(int window) {
  Config c;
  c.model = {.layers = 3, .hidden = 64, .heads = 4};
  c.model.vocab = 256;  // a multiple of the padding
  c.model.seq_len = 48;
  c.model.window = window;
  return value_or_throw(resolve_config(c, 1));
}

TEST(Flops, of_a_plain_gpt_are_the_published_formula) {
  const double L = 3, C = 64, T = 48, V = 256;
  EXPECT_DOUBLE_EQ(model_flops_per_token(gpt(0)), 72 * L * C * C + 12 * L * C * T + 6 * V * C);
}

// Two matrices have the model's width and two that of the key/value heads, whatever a head's width.
TEST(Flops, of_wide_heads_and_a_gated_mlp) {
  Config c = gpt(0);
  c.model.head_dim = 24;
  c.model.kv_heads = 2;
  c.model.activation = Activation::kSwiglu;
  c.model.ffn_hidden = 192;
  const double L = 3, C = 64, T = 48, V = 256, heads = 4 * 24, kv = 2 * 24, F = 192;
  EXPECT_DOUBLE_EQ(model_flops_per_token(c),
                   6 * (L * (2 * C * heads + 2 * C * kv + 3 * C * F) + V * C) + 12 * L * heads * T);
}

// Of the experts only those count that compute a token.
TEST(Flops, of_experts_are_those_of_the_active_ones) {
  Config c = gpt(0);
  c.model.activation = Activation::kSwiglu;
  c.model.ffn_hidden = 192;
  c.model.experts = 8;
  c.model.experts_per_token = 3;
  c.model.expert_hidden = 32;
  c.model.shared_experts = 2;
  c.model.dense_layers = 1;
  const double L = 3, C = 64, T = 48, V = 256, E = 8, K = 3, F = 32;
  EXPECT_DOUBLE_EQ(model_flops_per_token(c),
                   6 * (L * 4 * C * C + 3 * C * 192 + 2 * (E * C + (K + 2) * 3 * C * F) + V * C) + 12 * L * C * T);
  const Layers layers = layers_of_model(c);
  EXPECT_EQ(layers[1].weights() - layers[1].active_weights(), (E - K) * 3 * C * F);
}

TEST(Flops, of_a_window_are_those_inside_its_band) {
  const double L = 3, C = 64;
  for (const int window : {1, 5, 47})
    EXPECT_DOUBLE_EQ(model_flops_per_token(gpt(0)) - model_flops_per_token(gpt(window)), 12 * L * C * (48 - window));
}

TEST(Flops, of_a_pattern_are_those_of_its_layers) {
  Config c = gpt(5);
  c.model.layer_pattern = {LayerAttention::kFull, LayerAttention::kWindow};  // of three layers one has the window
  EXPECT_DOUBLE_EQ(model_flops_per_token(c), (2 * model_flops_per_token(gpt(0)) + model_flops_per_token(gpt(5))) / 3);
}

TEST(Flops, of_causal_attention_are_those_that_the_mask_leaves) {
  const double L = 3, C = 64, T = 48;
  for (const int window : {0, 1, 5, 47}) {
    double keys = 0;
    for (int query = 0; query < T; ++query) keys += std::min(query + 1, window == 0 ? 48 : window);
    const Config config = gpt(window);
    const double elsewhere = model_flops_per_token(config) - 12 * L * C * (window == 0 ? T : window);
    EXPECT_DOUBLE_EQ(model_flops_per_token(config, AttentionWork::kCausal), elsewhere + 12 * L * C * keys / T);
    EXPECT_LE(model_flops_per_token(config, AttentionWork::kCausal), model_flops_per_token(config));
  }
}

// Whole samples, as documents, have the FLOPs of samples without documents.
TEST(Flops, of_documents_count_their_pairs) {
  Config c = gpt(5);
  c.model.layer_pattern = {LayerAttention::kFull, LayerAttention::kWindow};
  ASSERT_EQ(attention_windows(c), (std::vector{0, 5}));
  const double T = 48, causal = T * (T + 1) / 2, inside = 5 * T - 10;
  EXPECT_DOUBLE_EQ(model_flops(c, T, {T * T, 5 * T}), T * model_flops_per_token(c));
  EXPECT_DOUBLE_EQ(model_flops(c, T, {causal, inside}), T * model_flops_per_token(c, AttentionWork::kCausal));
  const double C = 64;
  EXPECT_DOUBLE_EQ(model_flops(c, T, {causal, inside}) - model_flops(c, T, {causal - 100, inside - 7}),
                   12 * C * (2 * 100 + 7));
}

}  // namespace
}  // namespace tri
