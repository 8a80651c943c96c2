#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <functional>
#include <nlohmann/json.hpp>
#include <set>

#include "io/checkpoint/folder.h"
#include "io/checkpoint/index.h"
#include "io/checkpoint/shard_writer.h"
#include "io/safetensors.h"
#include "lib/checkpoint/diff.h"
#include "lib/checkpoint/weights.h"
#include "lib/config/presets.h"
#include "lib/huggingface/elements.h"
#include "lib/huggingface/export.h"
#include "lib/huggingface/gemma_keys.h"
#include "lib/huggingface/import.h"
#include "tests/io/temporary_folder.h"

namespace tri::huggingface {
namespace {

Config gpt2() {
  Config c;
  c.model.layers = 2;
  c.model.hidden = 12;
  c.model.heads = 3;
  c.model.vocab = 300;
  c.model.seq_len = 8;
  return value_or_throw(resolve_config(c, 1));
}

Config llama() {
  Config c = gpt2();
  c.model.heads = 6;
  c.model.head_dim = 0;
  c.model.kv_heads = 2;
  c.model.ffn_hidden = 20;
  c.model.norm = Norm::kRmsNorm;
  c.model.activation = Activation::kSwiglu;
  c.model.position = Position::kRope;
  c.model.bias = false;
  c.model.qkv_bias = AutoFlag::kAuto;  // gpt2's is resolved
  c.model.tie_embeddings = false;
  return value_or_throw(resolve_config(c, 1));
}

Config neox() {
  Config c = gpt2();
  c.model.heads = 2;
  c.model.kv_heads = c.model.head_dim = 0;
  c.model.hidden = 16;  // heads of 8, of which 4 elements rotate
  c.model.ffn_hidden = 20;
  c.model.activation = Activation::kGeluErf;
  c.model.position = Position::kRope;
  c.model.rope_fraction = 0.5;
  c.model.block = Block::kParallel;
  c.model.parallel_norms = 2;
  c.model.tie_embeddings = false;
  return value_or_throw(resolve_config(c, 1));
}

// Every kind of model that can be expressed.
std::map<std::string, Config> models() {
  std::map<std::string, Config> all;
  all["gpt2"] = gpt2();
  all["gpt2_untied"] = gpt2();
  all["gpt2_untied"].model.tie_embeddings = false;
  all["llama"] = llama();
  all["llama_tied_biases"] = llama();
  all["llama_tied_biases"].model.tie_embeddings = all["llama_tied_biases"].model.bias = true;
  all["llama_tied_biases"].model.qkv_bias = AutoFlag::kTrue;
  all["llama3"] = llama();
  all["llama3"].model.rope_scaling = RopeScaling::kLlama3;
  all["llama3"].model.rope_factor = 8;
  all["llama3"].model.rope_original_seq_len = 4;
  all["mistral"] = llama();
  all["mistral"].model.window = 3;
  all["qwen3"] = llama();
  all["qwen3"].model.qk_norm = QkNorm::kHead;
  all["qwen3"].model.head_dim *= 2;
  all["mixtral"] = llama();
  all["mixtral"].model.experts = 3;
  all["mixtral"].model.expert_hidden = 32;
  all["mixtral"].model.ffn_hidden = 0;  // no layer is dense: the format has no key for it
  fill_derived(all["mixtral"].model);
  all["qwen3_moe"] = all["qwen3"];
  all["qwen3_moe"].model.experts = 4;
  all["qwen3_moe"].model.experts_per_token = 3;
  all["qwen3_moe"].model.expert_hidden = 32;
  all["qwen3_moe"].model.router_renormalize = false;
  all["qwen3_yarn_window"] = all["qwen3"];
  all["qwen3_yarn_window"].model.window = 3;
  all["qwen3_yarn_window"].model.rope_scaling = RopeScaling::kYarn;
  all["qwen3_yarn_window"].model.rope_factor = 4;
  all["qwen3_yarn_window"].model.rope_original_seq_len = 2;
  all["qwen3_yarn_window"].model.rope_beta_fast = 16;
  all["qwen3_yarn_window"].model.rope_attention_factor = 1.5;
  all["neox"] = neox();
  all["neox_sequential_tanh"] = neox();
  all["neox_sequential_tanh"].model.block = Block::kSequential;
  all["neox_sequential_tanh"].model.parallel_norms = 1;
  all["neox_sequential_tanh"].model.activation = Activation::kGelu;
  all["neox_sequential_tanh"].model.tie_embeddings = true;
  all["olmo2"] = llama();
  all["olmo2"].model.qk_norm = QkNorm::kFull;
  all["olmo2"].model.norm_position = NormPosition::kPost;
  Config gemma = llama();
  gemma.model.activation = Activation::kGeglu;
  gemma.model.norm_position = NormPosition::kBoth;
  gemma.model.norm_offset = 1;
  gemma.model.embedding_scale = std::sqrt(12.0);
  gemma.model.attention_scale = 1 / std::sqrt(3.0);
  gemma.model.tie_embeddings = true;
  all["gemma2"] = gemma;
  all["gemma2"].model.attention_softcap = 50;
  all["gemma2"].model.window = 3;
  all["gemma2"].model.layer_pattern = {LayerAttention::kWindow, LayerAttention::kFull};
  all["gemma2_plain"] = gemma;
  all["gemma2_plain"].model.attention_scale = 0;
  all["gemma2_plain"].model.logit_softcap = 30.5;
  all["gemma3"] = gemma;
  all["gemma3"].model.layers = 4;
  all["gemma3"].model.qk_norm = QkNorm::kHead;
  all["gemma3"].model.window = 3;
  all["gemma3"].model.layer_pattern = {LayerAttention::kWindow, LayerAttention::kWindow, LayerAttention::kFull};
  all["gemma3"].model.rope_theta = 1e6;
  all["gemma3"].model.rope_theta_local = 5e3;
  all["gemma3"].model.rope_scaling = RopeScaling::kLinear;
  all["gemma3"].model.rope_factor = 8;
  all["qwen2"] = llama();
  all["qwen2"].model.qkv_bias = AutoFlag::kTrue;
  all["qwen2"].model.rope_scaling = RopeScaling::kLinear;
  all["qwen2"].model.rope_factor = 2.5;
  all["qwen2_window"] = all["qwen2"];
  all["qwen2_window"].model.window = 3;
  return all;
}

// A checkpoint in which every element has a unique value; padding is zero.
void write_run(const Config& config, const std::string& dir) {
  const std::string folder = value_or_throw(begin_attempt(dir, 7, "a"));
  auto writer = value_or_throw(ShardWriter::create(folder + "/" + shard_name(0), "a"));
  float next = 1;
  for (const ParamSpec& spec : model_parameters(config)) {
    std::vector<float> values(static_cast<size_t>(spec.numel()));
    const int64_t row = spec.numel() / spec.shape[0];
    const int64_t valid = spec.valid_rows < 0 ? spec.numel() : spec.valid_rows * row;
    for (int64_t i = 0; i < valid; ++i) values[static_cast<size_t>(i)] = next++ * 0.37f;
    const TensorShard full{.tensor = weight_name(spec.name),
                           .shape = spec.shape,
                           .region = {Coordinates(spec.shape.size(), 0), spec.shape}};
    value_or_throw(writer.add(full, values.data()));
  }
  Manifest manifest{.attempt = "a", .step = 7};
  manifest.info.texts["config"] = to_yaml(config);
  value_or_throw(manifest.add(value_or_throw(writer.finish())));
  value_or_throw(write_manifest(folder, manifest));
  value_or_throw(publish(dir, 7, "a"));
}

template <class T>
std::string message(const Result<T>& result) {
  return result ? "" : result.error().message;
}

TEST(HuggingFace, export_and_import_give_back_every_bit) {
  for (const auto& [name, config] : models())
    for (const int64_t most : {int64_t{5'000'000'000}, int64_t{4000}, int64_t{1}}) {
      SCOPED_TRACE(fmt::format("{}, at most {} bytes a file", name, most));
      const TemporaryFolder dir;
      write_run(config, dir / "run");
      const auto exported =
          export_checkpoint({.checkpoint = dir / "run/step_00000007", .folder = dir / "hf", .max_shard_bytes = most});
      ASSERT_EQ(message(exported), "");
      EXPECT_EQ(exported.value().files == exported.value().tensors, most == 1);
      EXPECT_EQ(std::filesystem::exists(dir / "hf/model.safetensors.index.json"), exported.value().files > 1);
      const auto imported = import_model({.folder = dir / "hf", .run_dir = dir / "back"});
      ASSERT_EQ(message(imported), "");
      const auto diff = diff_checkpoints(dir / "run/step_00000007", imported.value().checkpoint, "", 2);
      ASSERT_EQ(message(diff), "");
      EXPECT_TRUE(diff.value().equal());
      EXPECT_EQ(diff.value().tensors.size(), model_parameters(config).size());
      for (const ConfigDiff& field : diff.value().config)
        EXPECT_FALSE(field.field.starts_with("model.")) << field.field;
    }
}

// The tensors as transformers expects them: right counts of fused or divided rows, none missing, padding removed.
TEST(HuggingFace, names_and_shapes_are_those_of_transformers) {
  const TemporaryFolder dir;
  const std::map<std::string, std::map<std::string, std::vector<int64_t>>> expected = {
      {"gpt2",
       {{"transformer.wte.weight", {300, 12}},
        {"transformer.wpe.weight", {8, 12}},
        {"transformer.h.1.attn.c_attn.weight", {12, 36}},
        {"transformer.h.1.attn.c_attn.bias", {36}},
        {"transformer.h.0.mlp.c_fc.weight", {12, 48}},
        {"transformer.h.0.mlp.c_proj.weight", {48, 12}},
        {"transformer.ln_f.bias", {12}}}},
      {"llama",
       {{"lm_head.weight", {300, 12}},
        {"model.layers.1.self_attn.q_proj.weight", {12, 12}},
        {"model.layers.1.self_attn.k_proj.weight", {4, 12}},
        {"model.layers.1.mlp.gate_proj.weight", {20, 12}},
        {"model.layers.1.mlp.down_proj.weight", {12, 20}}}},
      {"gemma2",
       {{"model.layers.0.input_layernorm.weight", {12}},
        {"model.layers.1.post_attention_layernorm.weight", {12}},
        {"model.layers.1.pre_feedforward_layernorm.weight", {12}},
        {"model.layers.1.post_feedforward_layernorm.weight", {12}},
        {"model.layers.1.mlp.up_proj.weight", {20, 12}}}},
      {"qwen2",
       {{"model.layers.0.self_attn.q_proj.bias", {12}},
        {"model.layers.1.self_attn.k_proj.bias", {4}},
        {"model.layers.1.self_attn.v_proj.bias", {4}}}},
      {"neox",
       {{"embed_out.weight", {300, 16}},
        {"gpt_neox.layers.1.attention.query_key_value.weight", {48, 16}},
        {"gpt_neox.layers.1.attention.query_key_value.bias", {48}},
        {"gpt_neox.layers.0.post_attention_layernorm.bias", {16}},
        {"gpt_neox.layers.0.mlp.dense_4h_to_h.weight", {16, 20}}}},
      {"olmo2",
       {{"model.layers.0.self_attn.q_norm.weight", {12}},
        {"model.layers.0.self_attn.k_norm.weight", {4}},
        {"model.layers.1.post_attention_layernorm.weight", {12}},
        {"model.layers.1.post_feedforward_layernorm.weight", {12}}}}};
  for (const auto& [name, shapes] : expected) {
    write_run(models().at(name), dir / name);
    value_or_throw(export_checkpoint({.checkpoint = dir / name + "/step_00000007", .folder = dir / (name + "_hf")}));
    const auto file = value_or_throw(SafetensorsFile::open(dir / (name + "_hf/model.safetensors")));
    const std::map<std::string, size_t> counts{{"gpt2", 28},  {"llama", 21}, {"qwen2", 27},
                                               {"olmo2", 25}, {"neox", 28},  {"gemma2", 24}};
    EXPECT_EQ(file.entries().size(), counts.at(name));
    for (const auto& [tensor, shape] : shapes) {
      ASSERT_NE(file.find(tensor), nullptr) << tensor;
      EXPECT_EQ(file.find(tensor)->shape, shape) << tensor;
    }
  }
}

TEST(HuggingFace, queries_keys_and_values_come_out_of_their_groups) {
  const ModelConfig m = llama().model;  // 6 heads of 2, 2 groups of (3 queries, key, value)
  EXPECT_EQ(row_map(Rows::kQuery, m, 20), (std::vector<int64_t>{0, 1, 2, 3, 4, 5, 10, 11, 12, 13, 14, 15}));
  EXPECT_EQ(row_map(Rows::kKey, m, 20), (std::vector<int64_t>{6, 7, 16, 17}));
  EXPECT_EQ(row_map(Rows::kValue, m, 20), (std::vector<int64_t>{8, 9, 18, 19}));
  std::vector<int64_t> all = row_map(Rows::kQueryKeyValue, m, 20);
  EXPECT_EQ(std::set<int64_t>(all.begin(), all.end()).size(), 20u);
}

// transformers rotates the first elements of a head; here the first elements of both halves rotate.
TEST(HuggingFace, rows_of_a_head_that_rotates_in_part_are_reordered) {
  EXPECT_EQ(row_map(Rows::kByHead, neox().model, 48),
            (std::vector<int64_t>{0,  1,  4,  5,  2,  3,  6,  7,  8,  9,  12, 13, 10, 11, 14, 15,
                                  16, 17, 18, 19, 20, 21, 22, 23, 24, 25, 28, 29, 26, 27, 30, 31,
                                  32, 33, 36, 37, 34, 35, 38, 39, 40, 41, 42, 43, 44, 45, 46, 47}));
  ModelConfig whole = neox().model;
  whole.rope_fraction = 1;
  std::vector<int64_t> same = row_map(Rows::kByHead, whole, 48);
  EXPECT_TRUE(std::ranges::is_sorted(same));
}

TEST(HuggingFace, a_neox_config_has_names_of_its_own) {
  const std::string rest = R"("vocab_size":9,"hidden_size":16,"intermediate_size":20,"num_hidden_layers":1,)"
                           R"("num_attention_heads":2,"max_position_embeddings":4)";
  const auto read = [&](const std::string& more) {
    return parse_config_json("c", R"({"model_type":"gpt_neox",)" + rest + more + "}");
  };
  const ModelConfig absent = value_or_throw(read("")).model;
  EXPECT_EQ(absent.rope_fraction, 0.25);
  EXPECT_EQ(absent.rope_theta, 10000);
  EXPECT_EQ(absent.activation, Activation::kGeluErf);
  EXPECT_EQ(absent.block, Block::kParallel);
  EXPECT_EQ(absent.parallel_norms, 2);
  EXPECT_TRUE(absent.bias);
  EXPECT_FALSE(absent.tie_embeddings);
  const ModelConfig given = value_or_throw(read(R"(,"rotary_pct":0.5,"rotary_emb_base":500,"hidden_act":"gelu_new",)"
                                                R"("use_parallel_residual":false,"layer_norm_eps":0.001)"))
                                .model;
  EXPECT_EQ(given.rope_fraction, 0.5);
  EXPECT_EQ(given.rope_theta, 500);
  EXPECT_EQ(given.activation, Activation::kGelu);
  EXPECT_EQ(given.block, Block::kSequential);
  EXPECT_EQ(given.parallel_norms, 1);
  EXPECT_EQ(given.norm_eps, 0.001);
  const ModelConfig newer =
      value_or_throw(read(R"(,"rope_parameters":{"rope_theta":300,"partial_rotary_factor":0.5})")).model;
  EXPECT_EQ(newer.rope_fraction, 0.5);
  EXPECT_EQ(newer.rope_theta, 300);
  for (const auto& [key, value] : {std::pair{"rotary_pct", "1.5"},
                                   {"hidden_act", "\"relu\""},
                                   {"attention_bias", "false"},
                                   {"use_parallel_residual", "1"},
                                   {"partial_rotary_factor", "0.5,\"rotary_pct\":0.25"}})
    EXPECT_NE(message(read(fmt::format(R"(,"{}":{})", key, value))).find(key), std::string::npos) << key;
}

TEST(HuggingFace, halves_become_the_same_numbers) {
  EXPECT_EQ(float_of_half(0x3C00), 1.0f);
  EXPECT_EQ(float_of_half(0xC101), -2.501953125f);
  EXPECT_EQ(float_of_half(0x0001), 0x1p-24f);
  EXPECT_EQ(float_of_half(0x83FF), -1023 * 0x1p-24f);
  EXPECT_EQ(float_of_half(0x7BFF), 65504.0f);
  EXPECT_EQ(float_of_half(0x7C00), INFINITY);
  EXPECT_TRUE(std::isnan(float_of_half(0x7E01)));
  EXPECT_TRUE(std::signbit(float_of_half(0x8000)));
}

TEST(HuggingFace, a_model_that_no_format_expresses_is_refused_by_its_field) {
  const auto refused = [](const Config& base, auto change) {
    Config c = base;
    change(c.model);
    return message(weight_format_of(value_or_throw(resolve_config(c, 1)).model));
  };
  EXPECT_EQ(refused(gpt2(), [](ModelConfig& m) { m.block = Block::kParallel; }),
            "model.block: parallel can't be expressed as GPT2LMHeadModel, which has sequential\n1 error");
  EXPECT_NE(refused(gpt2(), [](ModelConfig& m) { m.window = 4; }).find("model.window: 4"), std::string::npos);
  EXPECT_NE(refused(gpt2(), [](ModelConfig& m) { m.kv_heads = 1; }).find("model.kv_heads: 1"), std::string::npos);
  EXPECT_NE(refused(gpt2(), [](ModelConfig& m) { m.norm = Norm::kRmsNorm; }).find("model.norm: rmsnorm"),
            std::string::npos);
  EXPECT_NE(refused(llama(), [](ModelConfig& m) { m.norm = Norm::kLayerNorm; }).find("model.norm: layernorm"),
            std::string::npos);
  EXPECT_NE(refused(llama(), [](ModelConfig& m) { m.bias = true, m.window = 3; }).find("model."), std::string::npos);
  EXPECT_EQ(refused(llama(),
                    [](ModelConfig& m) {
                      m.qkv_bias = AutoFlag::kTrue;
                      m.qk_norm = QkNorm::kHead;
                    }),
            "model.qk_norm: head can't be expressed as Qwen2ForCausalLM, which has none\n1 error");
  EXPECT_EQ(refused(llama(),
                    [](ModelConfig& m) {
                      m.bias = true;
                      m.qkv_bias = AutoFlag::kFalse;
                    }),
            "model.qkv_bias: false can't be expressed as LlamaForCausalLM, where it equals model.bias\n1 error");
}

TEST(HuggingFace, fields_of_gemma_are_refused_in_other_families_and_other_values_in_gemma) {
  const auto refused = [](const Config& base, auto change) {
    Config c = base;
    change(c.model);
    return message(weight_format_of(value_or_throw(resolve_config(c, 1)).model));
  };
  const auto names = [](const std::string& text, const std::string& part) {
    EXPECT_NE(text.find(part), std::string::npos) << text;
  };
  names(refused(llama(), [](ModelConfig& m) { m.attention_softcap = 50; }), "model.attention_softcap: 50");
  names(refused(llama(), [](ModelConfig& m) { m.logit_softcap = 30; }), "model.logit_softcap: 30");
  names(refused(llama(), [](ModelConfig& m) { m.attention_scale = 0.1; }), "model.attention_scale: 0.1");
  names(refused(llama(), [](ModelConfig& m) { m.embedding_scale = 3; }), "model.embedding_scale: 3");
  names(refused(llama(), [](ModelConfig& m) { m.norm_offset = 1; }), "model.norm_offset: 1");
  names(refused(llama(), [](ModelConfig& m) { m.activation = Activation::kGeglu; }), "model.activation: geglu");
  names(refused(llama(),
                [](ModelConfig& m) {
                  m.window = 3;
                  m.layer_pattern = {LayerAttention::kFull, LayerAttention::kWindow};
                }),
        "model.layer_pattern");
  EXPECT_EQ(refused(llama(), [](ModelConfig& m) { m.embedding_scale = 1; }), "");
  const Config gemma = models().at("gemma3");
  names(refused(gemma, [](ModelConfig& m) { m.norm_offset = 0; }), "model.norm_offset: 0");
  names(refused(gemma, [](ModelConfig& m) { m.embedding_scale = 1; }), "model.embedding_scale: 1");
  names(refused(gemma, [](ModelConfig& m) { m.attention_softcap = 50; }), "model.");
  ModelConfig one_rope = gemma.model;
  one_rope.rope_theta_local = 0;
  EXPECT_TRUE(gemma_objections(Gemma::kThree, "", gemma.model).empty());
  EXPECT_EQ(gemma_objections(Gemma::kThree, "", one_rope).size(), 1u) << "rope_scaling would be that of all layers";
  names(refused(models().at("gemma2"), [](ModelConfig& m) { m.rope_theta_local = 100; }), "model.");
}

// The keys of versions 4 and 5 of transformers, and their defaults.
TEST(HuggingFace, keys_of_gemma_are_read_as_transformers_does) {
  const auto parse = [](const std::string& type, const std::string& keys) {
    return parse_config_json("c", R"({"hidden_size":16,"intermediate_size":16,"num_hidden_layers":8,)"
                                  R"("num_attention_heads":2,"vocab_size":9,"max_position_embeddings":8192,)"
                                  R"("model_type":")" +
                                      type + "\"" + keys + "}");
  };
  const auto read = [&](const std::string& type, const std::string& keys = "") {
    const auto described = parse(type, keys);
    EXPECT_EQ(message(described), "") << keys;
    return described ? described.value().model : ModelConfig{};
  };
  const auto W = LayerAttention::kWindow, F = LayerAttention::kFull;
  using Pattern = std::vector<LayerAttention>;
  const ModelConfig two = read("gemma2");
  EXPECT_EQ(two.attention_softcap, 50);
  EXPECT_EQ(two.logit_softcap, 30);
  EXPECT_EQ(two.attention_scale, 0) << "1 / sqrt(256) is the default of head_dim 256";
  EXPECT_EQ(two.embedding_scale, 4);
  EXPECT_EQ(two.norm_offset, 1);
  EXPECT_EQ(two.window, 4096);
  EXPECT_EQ(two.layer_pattern, (Pattern{W, F}));
  EXPECT_TRUE(two.tie_embeddings);
  const ModelConfig other = read("gemma2", R"(,"attn_logit_softcapping":null,"final_logit_softcapping":null,)"
                                           R"("query_pre_attn_scalar":144,"sliding_window":10000)");
  EXPECT_EQ(other.attention_softcap, 0);
  EXPECT_EQ(other.logit_softcap, 0);
  EXPECT_EQ(other.attention_scale, 1.0 / 12);
  EXPECT_EQ(other.window, 8192) << "all earlier tokens";

  const ModelConfig three = read("gemma3_text");
  EXPECT_EQ(three.layer_pattern, (Pattern{W, W, W, W, W, F}));
  EXPECT_EQ(three.logit_softcap, 0);
  EXPECT_EQ(three.qk_norm, QkNorm::kHead);
  EXPECT_EQ(three.rope_theta, 1e6);
  EXPECT_EQ(three.rope_theta_local, 1e4);
  EXPECT_EQ(read("gemma3_text", R"(,"sliding_window_pattern":3)").layer_pattern, (Pattern{W, W, F}));
  const std::string s = R"("sliding_attention")", f = R"("full_attention")";
  EXPECT_EQ(read("gemma3_text", fmt::format(R"(,"layer_types":[{0},{0},{1},{0},{0},{1},{0},{0}])", f, s)).layer_pattern,
            (Pattern{F, F, W}));
  const ModelConfig full = read("gemma3_text", fmt::format(R"(,"layer_types":[{0},{0},{0},{0},{0},{0},{0},{0}])", f));
  EXPECT_TRUE(full.layer_pattern.empty());
  EXPECT_EQ(full.window, 0);
  EXPECT_EQ(full.rope_theta_local, 0);
  for (const std::string& keys :
       {std::string(
            R"(,"rope_theta":5e5,"rope_local_base_freq":2e4,"rope_scaling":{"rope_type":"linear","factor":8.0})"),
        std::string(R"(,"rope_parameters":{"full_attention":{"rope_type":"linear","factor":8.0,"rope_theta":5e5},)"
                    R"("sliding_attention":{"rope_type":"default","rope_theta":2e4}})")}) {
    const ModelConfig m = read("gemma3_text", keys);
    EXPECT_EQ(m.rope_theta, 5e5) << keys;
    EXPECT_EQ(m.rope_theta_local, 2e4) << keys;
    EXPECT_EQ(m.rope_scaling, RopeScaling::kLinear) << keys;
    EXPECT_EQ(m.rope_factor, 8) << keys;
  }
  EXPECT_EQ(read("gemma3_text", R"(,"rope_theta":1e4)").rope_theta_local, 0) << "the same rope in all layers";

  const std::pair<std::string, std::string> wrong[] = {
      {"gemma2", R"("hidden_activation":"silu")"},
      {"gemma2", R"("use_bidirectional_attention":true)"},
      {"gemma2", R"("query_pre_attn_scalar":0)"},
      {"gemma2", R"("attn_logit_softcapping":"50")"},
      {"gemma2", R"("attention_bias":true)"},
      {"gemma2", R"("sliding_window":null)"},
      {"gemma2", R"("layer_types":["full_attention"])"},
      {"gemma3_text", R"("attn_logit_softcapping":50)"},
      {"gemma3_text", R"("sliding_window_pattern":2.5)"},
      {"gemma3_text", R"("layer_types":[1,2,3,4,5,6,7,8])"},
      {"gemma3_text", R"("rope_parameters":{"chunked_attention":{}})"},
      {"gemma3_text", R"("rope_parameters":{"sliding_attention":{"rope_type":"linear","factor":2.0}})"}};
  for (const auto& [type, key] : wrong) {
    const std::string text = message(parse(type, "," + key));
    EXPECT_NE(text.find(key.substr(1, key.find('"', 1) - 1)), std::string::npos) << key << ": " << text;
  }
}

TEST(HuggingFace, a_config_that_we_cannot_express_is_refused_by_its_key) {
  nlohmann::json good = nlohmann::json::parse(
      config_json(*value_or_throw(weight_format_of(llama().model)), llama().model, Dtype::kF32, {}, "bytes", 0));
  const auto refused = [&](const std::string& key, nlohmann::json value) {
    nlohmann::json json = good;
    json[key] = std::move(value);
    return message(parse_config_json("c", json.dump()));
  };
  EXPECT_EQ(message(parse_config_json("c", good.dump())), "");
  const std::pair<std::string, nlohmann::json> wrong[] = {
      {"model_type", "bert"},
      {"model_type", nullptr},
      {"model_type", 3},
      {"hidden_act", "gelu"},
      {"head_dim", 0},
      {"attention_bias", true},
      {"rope_scaling", {{"rope_type", "llama3"}, {"factor", 8.0}}},
      {"rope_parameters", {{"rope_type", "yarn"}, {"rope_theta", 1e4}}},
      {"auto_map", {{"AutoModelForCausalLM", "modeling_mine.Mine"}}},
      {"hidden_size", nullptr},
      {"rope_parameters", {{"full_attention", {{"rope_theta", 1e4}}}}},
      {"partial_rotary_factor", 0.5},
      {"rope_theta", "1e4"},
      {"quantization_config", {{"quant_method", "fp8"}}},
      {"rms_norm_eps", nullptr},
      {"num_hidden_layers", 1.5},
      {"tie_word_embeddings", nullptr},
      {"tie_word_embeddings", "yes"}};
  for (const auto& [key, value] : wrong) {
    const std::string text = refused(key, value);
    EXPECT_NE(text.find(key), std::string::npos) << key << ": " << text;
    EXPECT_EQ(text.find("exception"), std::string::npos) << key << ": " << text;
  }
  EXPECT_NE(message(parse_config_json("c", "{")), "");
  EXPECT_NE(message(parse_config_json("c", "[]")), "");
}

TEST(HuggingFace, keys_that_old_configs_lack_have_their_meaning_of_then) {
  const auto described = value_or_throw(
      parse_config_json("c", R"({"model_type":"llama","hidden_size":8,"intermediate_size":16,"num_hidden_layers":1,
               "num_attention_heads":2,"vocab_size":9,"max_position_embeddings":4})"));
  EXPECT_EQ(described.model.kv_heads, 0);  // equal to heads
  EXPECT_EQ(described.model.rope_theta, 10000);
  EXPECT_EQ(described.model.norm_eps, 1e-6);
  EXPECT_FALSE(described.model.tie_embeddings || described.model.bias);
}

// Damage to an exported folder, and the import's message about it. Nothing remains in the run's folder except its lock.
TEST(HuggingFace, a_folder_with_a_missing_a_strange_or_a_misshapen_tensor_is_refused) {
  const TemporaryFolder dir;
  write_run(gpt2(), dir / "run");
  value_or_throw(export_checkpoint({.checkpoint = dir / "run/step_00000007", .folder = dir / "hf"}));
  const std::string intact = read_all(dir / "hf/model.safetensors");
  const auto with = [&](const std::string& from, const std::string& to) {
    std::string bytes = intact;
    bytes.replace(bytes.find(from), from.size(), to);
    write_all(dir / "hf/model.safetensors", bytes);
    const std::string text = message(import_model({.folder = dir / "hf", .run_dir = dir / "back"}));
    EXPECT_FALSE(std::filesystem::exists(dir / "back/config.yaml"));
    EXPECT_TRUE(value_or_throw(list_checkpoints(dir / "back/checkpoints")).empty());
    return text;
  };
  EXPECT_NE(with("h.0.ln_1.bias", "h.0.ln_9.bias").find("tensor transformer.h.0.ln_1.bias is missing"),
            std::string::npos);
  EXPECT_NE(with("[12,36]", "[36,12]").find("is [36, 12], expected [12, 36]"), std::string::npos);
  std::filesystem::remove(dir / "hf/model.safetensors");
  EXPECT_NE(message(import_model({.folder = dir / "hf", .run_dir = dir / "back"})).find("save_pretrained"),
            std::string::npos);
  for (const char* index : {R"({"metadata": {}})", "[]"}) {
    write_all(dir / "hf/model.safetensors.index.json", index);
    EXPECT_NE(message(import_model({.folder = dir / "hf", .run_dir = dir / "back"})).find("weight_map is missing"),
              std::string::npos);
  }
  std::filesystem::remove(dir / "hf/model.safetensors.index.json");

  auto writer = value_or_throw(SafetensorsWriter::create(dir / "hf/model.safetensors", {{"x.weight", {}, {1}}}));
  const float one = 1;
  writer.write("x.weight", &one, 4);
  value_or_throw(writer.finish());
  EXPECT_NE(message(import_model({.folder = dir / "hf", .run_dir = dir / "back"})).find("is missing"),
            std::string::npos);
}

TEST(HuggingFace, an_import_with_a_path_that_is_not_utf8_is_refused_before_it_begins) {
  const TemporaryFolder dir;
  write_run(gpt2(), dir / "run");
  const std::string latin1 = dir / "caf\xe9";
  // An export stores no path, so it may have any name.
  value_or_throw(export_checkpoint({.checkpoint = dir / "run/step_00000007", .folder = latin1 + "/hf"}));
  std::filesystem::copy(latin1 + "/hf", dir / "hf");
  for (const auto& [from, to] : {std::pair{latin1 + "/hf", dir / "back"}, {dir / "hf", latin1 + "/back"}}) {
    const auto imported = import_model({.folder = from, .run_dir = to});
    ASSERT_FALSE(imported);
    EXPECT_EQ(imported.error().code, ExitCode::kUsage);
    EXPECT_NE(imported.error().message.find("not UTF-8 text"), std::string::npos) << imported.error().message;
    EXPECT_TRUE(imported.error().message.starts_with(latin1)) << imported.error().message;
    EXPECT_FALSE(std::filesystem::exists(to));
  }
}

TEST(HuggingFace, tensors_without_a_place_are_refused_and_old_masks_and_short_names_are_not) {
  const TemporaryFolder dir;
  write_run(gpt2(), dir / "run");
  value_or_throw(export_checkpoint({.checkpoint = dir / "run/step_00000007", .folder = dir / "hf"}));
  // The same tensors without "transformer.", and one additional tensor.
  const auto rewrite = [&](const std::string& more) {
    std::filesystem::create_directories(dir / "old");
    std::filesystem::copy_file(dir / "hf/config.json", dir / "old/config.json",
                               std::filesystem::copy_options::overwrite_existing);
    const auto file = value_or_throw(SafetensorsFile::open(dir / "hf/model.safetensors"));
    std::vector<SafetensorsEntry> entries = file.entries();
    for (SafetensorsEntry& entry : entries) entry.name = entry.name.substr(std::string("transformer.").size());
    entries.push_back({more, StoredType::kU8, {3}});
    auto writer = value_or_throw(SafetensorsWriter::create(dir / "old/model.safetensors", entries));
    for (size_t i = 0; i + 1 < entries.size(); ++i)
      writer.write(entries[i].name, file.data(file.entries()[i]).data(), entries[i].bytes());
    writer.write(more, "abc", 3);
    value_or_throw(writer.finish());
  };
  rewrite("h.0.attn.bias");
  const auto imported = import_model({.folder = dir / "old", .run_dir = dir / "back"});
  ASSERT_EQ(message(imported), "");
  EXPECT_TRUE(
      value_or_throw(diff_checkpoints(dir / "run/step_00000007", imported.value().checkpoint, "model/", 1)).equal());
  rewrite("h.0.attn.rotary");
  EXPECT_NE(message(import_model({.folder = dir / "old", .run_dir = dir / "other"})).find("is not part of"),
            std::string::npos);
}

// Rewrites the file in `hf` with `change` applied to names, types and data of its tensors.
struct StoredTensor {
  SafetensorsEntry entry;
  std::string bytes;
};
void rewrite_model(const std::string& folder, const std::function<void(std::vector<StoredTensor>&)>& change) {
  std::vector<StoredTensor> tensors;
  {
    const auto file = value_or_throw(SafetensorsFile::open(folder + "/model.safetensors"));
    for (const SafetensorsEntry& entry : file.entries()) {
      const auto data = file.data(entry);
      tensors.push_back({entry, std::string(reinterpret_cast<const char*>(data.data()), data.size())});
    }
  }
  change(tensors);
  nlohmann::ordered_json header = nlohmann::ordered_json::object();
  std::string data;
  for (const StoredTensor& t : tensors) {
    header[t.entry.name] = {{"dtype", t.entry.dtype()},
                            {"shape", t.entry.shape},
                            {"data_offsets", {data.size(), data.size() + t.bytes.size()}}};
    data += t.bytes;
  }
  const std::string text = header.dump();
  const uint64_t length = text.size();
  write_all(folder + "/model.safetensors",
            std::string(reinterpret_cast<const char*>(&length), sizeof length) + text + data);
}
StoredTensor& tensor_of(std::vector<StoredTensor>& tensors, const std::string& name) {
  const auto at = std::find_if(tensors.begin(), tensors.end(), [&](const auto& t) { return t.entry.name == name; });
  TRI_REQUIRE(at != tensors.end(), "no tensor {}", name);
  return *at;
}
void edit_config(const std::string& folder, const std::function<void(nlohmann::json&)>& change) {
  auto json = nlohmann::json::parse(read_all(folder + "/config.json"));
  change(json);
  write_all(folder + "/config.json", json.dump());
}

// As in transformers 5: tied only if the head is absent or equals the embedding.
TEST(HuggingFace, a_head_of_its_own_is_not_tied_whatever_the_config_says) {
  const std::string head = "lm_head.weight", embedding = "model.embed_tokens.weight";
  const TemporaryFolder dir;
  write_run(llama(), dir / "run");
  value_or_throw(export_checkpoint({.checkpoint = dir / "run/step_00000007", .folder = dir / "hf"}));
  edit_config(dir / "hf", [](nlohmann::json& json) { json["tie_word_embeddings"] = true; });
  const auto imported = import_model({.folder = dir / "hf", .run_dir = dir / "other"});
  ASSERT_EQ(message(imported), "");
  EXPECT_NE(imported.value().head.find("lm_head.weight differs"), std::string::npos) << imported.value().head;
  EXPECT_TRUE(
      value_or_throw(diff_checkpoints(dir / "run/step_00000007", imported.value().checkpoint, "model/", 1)).equal());
  EXPECT_NE(read_all(imported.value().config).find("tie_embeddings: false"), std::string::npos);
  EXPECT_NE(message(import_model(
                        {.folder = dir / "hf", .run_dir = dir / "forced", .overrides = {"model.tie_embeddings=true"}}))
                .find("would drop lm_head.weight"),
            std::string::npos);

  rewrite_model(dir / "hf",
                [&](auto& tensors) { tensor_of(tensors, head).bytes = tensor_of(tensors, embedding).bytes; });
  const auto same = import_model({.folder = dir / "hf", .run_dir = dir / "same"});
  ASSERT_EQ(message(same), "");
  EXPECT_EQ(same.value().head, "");
  EXPECT_NE(read_all(same.value().config).find("tie_embeddings: true"), std::string::npos);

  rewrite_model(dir / "hf", [&](auto& tensors) {
    std::erase_if(tensors, [&](const StoredTensor& t) { return t.entry.name == embedding; });
  });
  const auto alone = import_model({.folder = dir / "hf", .run_dir = dir / "alone"});
  ASSERT_EQ(message(alone), "");
  EXPECT_TRUE(value_or_throw(diff_checkpoints(same.value().checkpoint, alone.value().checkpoint, "model/", 1)).equal());
}

TEST(HuggingFace, tensors_that_hold_no_weights_are_ignored_whatever_their_type) {
  for (const std::string model : {"gpt2", "llama"}) {
    const TemporaryFolder dir;
    write_run(models().at(model), dir / "run");
    value_or_throw(export_checkpoint({.checkpoint = dir / "run/step_00000007", .folder = dir / "hf"}));
    const auto add = [](const std::string& name, const std::string& dtype, int64_t bytes) {
      return [=](std::vector<StoredTensor>& tensors) {
        StoredTensor tensor{{.name = name, .shape = {8}, .other_dtype = dtype},
                            std::string(static_cast<size_t>(bytes), '\1')};
        tensors.push_back(std::move(tensor));
      };
    };
    const std::string buffer =
        model == "gpt2" ? "transformer.h.0.attn.bias" : "model.layers.0.self_attn.rotary_emb.inv_freq";
    const std::string other = model == "gpt2" ? "transformer.h.1.attn.masked_bias" : "rotary_emb.inv_freq";
    rewrite_model(dir / "hf", add(buffer, "BOOL", 8));
    rewrite_model(dir / "hf", add(other, "F64", 64));
    rewrite_model(dir / "hf",
                  add(model == "gpt2" ? "transformer.h.1.attn.bias" : "model.layers.1.self_attn.rotary_emb.cos_cached",
                      "I64", 64));
    const auto imported = import_model({.folder = dir / "hf", .run_dir = dir / "back"});
    ASSERT_EQ(message(imported), "") << model;
    EXPECT_TRUE(
        value_or_throw(diff_checkpoints(dir / "run/step_00000007", imported.value().checkpoint, "model/", 1)).equal());
    rewrite_model(dir / "hf", add("spare", "BOOL", 8));
    EXPECT_NE(
        message(import_model({.folder = dir / "hf", .run_dir = dir / "spare"})).find("tensor spare is not part of"),
        std::string::npos);
    // A weight of such a type is refused.
    const std::string norm = model == "gpt2" ? "transformer.ln_f.weight" : "model.norm.weight";
    rewrite_model(dir / "hf", [&](auto& tensors) {
      std::erase_if(tensors, [](const StoredTensor& t) { return t.entry.name == "spare"; });
      StoredTensor& weight = tensor_of(tensors, norm);
      weight.entry.other_dtype = "F8_E4M3";
      weight.bytes.resize(12);
    });
    EXPECT_NE(message(import_model({.folder = dir / "hf", .run_dir = dir / "fp8"}))
                  .find("tensor " + norm + " is F8_E4M3; weights must be"),
              std::string::npos);
  }
}

TEST(HuggingFace, keys_of_both_versions_of_transformers_are_read_as_version_5_does) {
  const auto theta = [](const std::string& keys) {
    const auto described = parse_config_json(
        "c",
        R"({"model_type":"llama","hidden_size":8,"intermediate_size":16,"num_hidden_layers":1,"num_attention_heads":2,)"
        R"("vocab_size":9,"max_position_embeddings":4)" +
            keys + "}");
    EXPECT_EQ(message(described), "") << keys;
    return described ? described.value().model.rope_theta : 0;
  };
  EXPECT_EQ(theta(""), 1e4);
  EXPECT_EQ(theta(R"(,"rope_theta":5e5)"), 5e5);
  EXPECT_EQ(theta(R"(,"rope_theta":null)"), 1e4);
  EXPECT_EQ(theta(R"(,"rope_parameters":{"rope_theta":5e5,"rope_type":"default"})"), 5e5);
  EXPECT_EQ(theta(R"(,"rope_theta":1e6,"rope_parameters":{"rope_theta":5e5,"rope_type":"default"})"), 5e5);
  EXPECT_EQ(theta(R"(,"rope_theta":1e6,"rope_parameters":{"rope_type":"default"})"), 1e6);
  EXPECT_EQ(theta(R"(,"rope_theta":1e6,"rope_scaling":{"type":"default"},"rope_parameters":{"rope_theta":5e5})"), 1e6);
  EXPECT_EQ(theta(R"(,"rope_scaling":{},"rope_parameters":{"rope_theta":5e5})"), 5e5);
  EXPECT_EQ(theta(R"(,"rope_scaling":null,"dtype":"bfloat16","torch_dtype":"float32")"), 1e4);
}

// What matters of the config.json of each model on the Hub. Presets train with shorter sequences.
TEST(HuggingFace, presets_are_the_published_models) {
  const std::string llama = R"("model_type":"llama","vocab_size":128256,"max_position_embeddings":131072,)"
                            R"("rms_norm_eps":1e-05,"rope_theta":500000.0,"hidden_act":"silu","attention_bias":false,)"
                            R"("mlp_bias":false,"num_key_value_heads":8,"pretraining_tp":1,"initializer_range":0.02,)"
                            R"("rope_scaling":{"high_freq_factor":4.0,"low_freq_factor":1.0,"rope_type":"llama3",)"
                            R"("original_max_position_embeddings":8192,"factor":)";
  const std::string qwen3 = R"("model_type":"qwen3","vocab_size":151936,"max_position_embeddings":40960,)"
                            R"("rms_norm_eps":1e-06,"rope_theta":1000000,"hidden_act":"silu","attention_bias":false,)"
                            R"("num_key_value_heads":8,"head_dim":128,"rope_scaling":null,"sliding_window":null,)"
                            R"("use_sliding_window":false,"initializer_range":0.02,)";
  const std::map<std::string, std::string> published = {
      {"llama_3_1b", llama + R"(32.0},"hidden_size":2048,"intermediate_size":8192,"num_hidden_layers":16,)"
                             R"("num_attention_heads":32,"head_dim":64,"tie_word_embeddings":true)"},
      {"llama_3_8b", llama + R"(8.0},"hidden_size":4096,"intermediate_size":14336,"num_hidden_layers":32,)"
                             R"("num_attention_heads":32,"tie_word_embeddings":false)"},
      {"llama_3_70b", llama + R"(8.0},"hidden_size":8192,"intermediate_size":28672,"num_hidden_layers":80,)"
                              R"("num_attention_heads":64,"tie_word_embeddings":false)"},
      {"qwen2_5_7b", R"("model_type":"qwen2","vocab_size":152064,"hidden_size":3584,"intermediate_size":18944,)"
                     R"("num_hidden_layers":28,"num_attention_heads":28,"num_key_value_heads":4,"hidden_act":"silu",)"
                     R"("max_position_embeddings":131072,"max_window_layers":28,"rms_norm_eps":1e-06,)"
                     R"("rope_theta":1000000.0,"sliding_window":131072,"use_sliding_window":false,)"
                     R"("tie_word_embeddings":false,"use_mrope":false,"initializer_range":0.02)"},
      {"qwen3_30b_a3b",
       R"("model_type":"qwen3_moe","vocab_size":151936,"max_position_embeddings":40960,"rms_norm_eps":1e-06,)"
       R"("rope_theta":1000000.0,"hidden_act":"silu","attention_bias":false,"num_key_value_heads":4,"head_dim":128,)"
       R"("rope_scaling":null,"sliding_window":null,"use_sliding_window":false,"max_window_layers":48,)"
       R"("initializer_range":0.02,"hidden_size":2048,"intermediate_size":6144,"moe_intermediate_size":768,)"
       R"("num_hidden_layers":48,"num_attention_heads":32,"num_experts":128,"num_experts_per_tok":8,)"
       R"("norm_topk_prob":true,"decoder_sparse_step":1,"mlp_only_layers":[],"tie_word_embeddings":false)"},
      {"mixtral_8x7b",
       R"("model_type":"mixtral","vocab_size":32000,"max_position_embeddings":32768,"rms_norm_eps":1e-05,)"
       R"("rope_theta":1000000.0,"hidden_act":"silu","num_key_value_heads":8,"sliding_window":null,)"
       R"("initializer_range":0.02,"hidden_size":4096,"intermediate_size":14336,"num_hidden_layers":32,)"
       R"("num_attention_heads":32,"num_experts_per_tok":2,"num_local_experts":8,"tie_word_embeddings":false)"},
      {"qwen3_0_6b", qwen3 + R"("hidden_size":1024,"intermediate_size":3072,"num_hidden_layers":28,)"
                             R"("num_attention_heads":16,"max_window_layers":28,"tie_word_embeddings":true)"},
      {"qwen3_8b", qwen3 + R"("hidden_size":4096,"intermediate_size":12288,"num_hidden_layers":36,)"
                           R"("num_attention_heads":32,"max_window_layers":36,"tie_word_embeddings":false)"},
      {"qwen3_32b", qwen3 + R"("hidden_size":5120,"intermediate_size":25600,"num_hidden_layers":64,)"
                            R"("num_attention_heads":64,"max_window_layers":64,"tie_word_embeddings":false)"}};
  size_t found = 0;
  for (const Preset& preset : presets()) {
    const auto at = published.find(std::string(preset.name));
    if (at == published.end()) continue;
    ++found;
    ModelConfig native = value_or_throw(parse_config(preset.yaml, at->first, {})).model;
    ModelConfig hf = value_or_throw(parse_config_json(at->first, "{" + at->second + "}")).model;
    hf.seq_len = native.seq_len;
    hf.aux_loss = native.aux_loss;  // that of transformers is another function
    fill_derived(native);
    fill_derived(hf);
    EXPECT_EQ(native, hf) << at->first;
  }
  EXPECT_EQ(found, published.size());
}

TEST(HuggingFace, scaled_rope_is_read_from_the_keys_of_both_versions) {
  const auto read = [](const std::string& keys) {
    return parse_config_json(
        "c",
        R"({"model_type":"llama","hidden_size":8,"intermediate_size":16,"num_hidden_layers":1,"num_attention_heads":2,)"
        R"("vocab_size":9,"max_position_embeddings":64)" +
            keys + "}");
  };
  const auto model = [&](const std::string& keys) { return value_or_throw(read(keys)).model; };
  // Llama 3.2 as it is on the Hub, and as transformers 5 writes it.
  for (const std::string keys :
       {R"(,"rope_theta":5e5,"rope_scaling":{"factor":32.0,"high_freq_factor":4.5,"low_freq_factor":1.5,)"
        R"("original_max_position_embeddings":16,"rope_type":"llama3"})",
        R"(,"rope_parameters":{"factor":32.0,"high_freq_factor":4.5,"low_freq_factor":1.5,"rope_theta":5e5,)"
        R"("original_max_position_embeddings":16,"rope_type":"llama3"})"}) {
    const ModelConfig m = model(keys);
    EXPECT_EQ(m.rope_scaling, RopeScaling::kLlama3);
    EXPECT_EQ(m.rope_theta, 5e5);
    EXPECT_EQ(m.rope_factor, 32);
    EXPECT_EQ(m.rope_low_freq_factor, 1.5);
    EXPECT_EQ(m.rope_high_freq_factor, 4.5);
    EXPECT_EQ(m.rope_original_seq_len, 16);
  }
  const ModelConfig linear = model(R"(,"rope_scaling":{"type":"linear","factor":4})");
  EXPECT_EQ(linear.rope_scaling, RopeScaling::kLinear);
  EXPECT_EQ(linear.rope_factor, 4);
  const ModelConfig yarn = model(R"(,"rope_scaling":{"type":"yarn","rope_type":"yarn","factor":4.0,"beta_slow":null})");
  EXPECT_EQ(yarn.rope_scaling, RopeScaling::kYarn);
  EXPECT_EQ(yarn.rope_original_seq_len, 64) << "max_position_embeddings";
  EXPECT_EQ(yarn.rope_beta_fast, 32);
  EXPECT_EQ(yarn.rope_beta_slow, 1);
  EXPECT_EQ(yarn.rope_attention_factor, 0);
  const std::string original = R"(,"rope_scaling":{"type":"yarn","original_max_position_embeddings":16,)";
  EXPECT_EQ(model(original + R"("factor":null})").rope_factor, 4) << "the ratio of the lengths";
  EXPECT_EQ(model(original + R"("factor":8,"attention_factor":1.25,"mscale":2})").rope_attention_factor, 1.25);
  EXPECT_EQ(model(original + R"("factor":8,"mscale":2.0})").rope_attention_factor, 0) << "as in transformers";
  EXPECT_NEAR(model(original + R"("factor":8,"mscale":2.0,"mscale_all_dim":0.5})").rope_attention_factor,
              (0.2 * std::log(8) + 1) / (0.05 * std::log(8) + 1), 1e-15);
  EXPECT_EQ(model(R"(,"rope_scaling":{"type":"linear","factor":4,"beta_fast":7})").rope_beta_fast, 32) << "no effect";

  const auto refusal = [&](const std::string& rope) { return message(read(R"(,"rope_scaling":)" + rope)); };
  EXPECT_EQ(refusal(R"({"type":"dynamic","factor":2})"),
            "c: rope_scaling.type: \"dynamic\" is not supported; supported are default, linear, llama3, yarn");
  EXPECT_NE(refusal(R"({"rope_type":"longrope","short_factor":[1]})").find("rope_scaling.rope_type: \"longrope\""),
            std::string::npos);
  EXPECT_NE(refusal(R"({"rope_type":"yarn","type":"linear","factor":2})").find("but type: \"linear\""),
            std::string::npos);
  EXPECT_EQ(refusal(R"({"type":"linear"})"), "c: rope_scaling.factor is missing");
  EXPECT_EQ(refusal(R"({"type":"linear","factor":"2"})"), "c: rope_scaling.factor: \"2\" is not a number above 0");
  EXPECT_EQ(refusal(R"({"type":"linear","factor":0.5})"), "c: rope_scaling.factor: 0.5 is below 1");
  EXPECT_EQ(refusal(R"({"factor":8})"), "c: rope_scaling.factor: 8 is not supported with rope_type default");
  for (const std::string key : {R"("truncate":false)", R"("mrope_section":[1])"})
    EXPECT_NE(refusal(R"({"type":"yarn","factor":2,)" + key + "}").find("is not supported with rope_type yarn"),
              std::string::npos)
        << key;
  EXPECT_EQ(refusal(R"({"type":"yarn","factor":2,"partial_rotary_factor":0.5})"),
            "c: rope_scaling.partial_rotary_factor: 0.5 is not supported; only 1 is");
  EXPECT_NE(refusal(R"({"type":"yarn","factor":2,"original_max_position_embeddings":1.5})").find("is not a length"),
            std::string::npos);
}

// With either version's keys alone, transformers reads the same.
TEST(HuggingFace, scaled_rope_is_written_for_both_versions) {
  for (const std::string name : {"llama", "llama3", "qwen2", "qwen3_yarn_window"}) {
    const ModelConfig model = models().at(name).model;
    const auto json = nlohmann::json::parse(
        config_json(*value_or_throw(weight_format_of(model)), model, Dtype::kF32, {}, "bytes", 0));
    EXPECT_EQ(json["rope_scaling"].is_null(), name == "llama");
    EXPECT_FALSE(json["rope_scaling"].contains("rope_theta"));
    for (const auto& keys : {std::vector{"rope_parameters"}, {"rope_theta", "rope_scaling"}}) {
      nlohmann::json one_version = json;
      for (const char* key : keys) one_version.erase(key);
      const ModelConfig read = value_or_throw(parse_config_json("c", one_version.dump())).model;
      for (double ModelConfig::*field :
           {&ModelConfig::rope_theta, &ModelConfig::rope_factor, &ModelConfig::rope_low_freq_factor,
            &ModelConfig::rope_high_freq_factor, &ModelConfig::rope_beta_fast, &ModelConfig::rope_beta_slow,
            &ModelConfig::rope_attention_factor})
        EXPECT_EQ(read.*field, model.*field) << name;
      EXPECT_EQ(read.rope_scaling, model.rope_scaling) << name;
      EXPECT_EQ(read.rope_original_seq_len, model.rope_original_seq_len) << name;
    }
  }
}

TEST(HuggingFace, what_a_qwen3_config_omits_is_transformers_default) {
  const std::string base =
      R"({"model_type":"qwen3","hidden_size":64,"intermediate_size":16,"num_hidden_layers":2,)"
      R"("num_attention_heads":64,"vocab_size":9,"max_position_embeddings":9000,"sliding_window":4096)";
  const ModelConfig absent = value_or_throw(parse_config_json("c", base + "}")).model;
  EXPECT_EQ(absent.qk_norm, QkNorm::kHead);
  EXPECT_EQ(absent.head_dim, 128);
  EXPECT_EQ(absent.kv_heads, 32);
  EXPECT_EQ(absent.window, 0) << "sliding_window counts where use_sliding_window is true";
  const auto with = [&](const std::string& key) { return parse_config_json("c", base + "," + key + "}"); };
  EXPECT_TRUE(with(R"("layer_types":["full_attention","full_attention"])"));
  EXPECT_NE(message(with(R"("layer_types":["full_attention","sliding_attention"])")).find("layer_types"),
            std::string::npos);
  const auto window = [&](const std::string& layers) {
    return value_or_throw(with(R"("use_sliding_window":true,"max_window_layers":)" + layers)).model.window;
  };
  EXPECT_EQ(window("2"), 0) << "no layer has one";
  EXPECT_EQ(window("0"), 4096) << "every layer has one";
  EXPECT_NE(message(with(R"("use_sliding_window":true,"max_window_layers":1)")).find("max_window_layers: 1"),
            std::string::npos);
  EXPECT_NE(message(with(R"("attention_bias":true)")).find("attention_bias"), std::string::npos);
}

TEST(HuggingFace, what_a_qwen2_config_omits_is_transformers_default) {
  const std::string base =
      R"({"model_type":"qwen2","hidden_size":64,"intermediate_size":16,"num_hidden_layers":2,)"
      R"("num_attention_heads":32,"vocab_size":9,"max_position_embeddings":9000,"attention_bias":false})";
  const ModelConfig absent = value_or_throw(parse_config_json("c", base)).model;
  EXPECT_FALSE(absent.bias);
  EXPECT_EQ(absent.qkv_bias, AutoFlag::kTrue) << "attention_bias has no effect";
  EXPECT_EQ(absent.kv_heads, 32);
  EXPECT_EQ(absent.window, 0);
  EXPECT_EQ(absent.head_dim, 0) << "hidden_size / num_attention_heads";
  EXPECT_FALSE(absent.tie_embeddings);
}

// Without a window Mistral's model is one of Llama's too: an imported one keeps its class.
TEST(HuggingFace, an_imported_model_is_exported_as_the_class_that_it_was) {
  const TemporaryFolder dir;
  write_run(llama(), dir / "run");
  value_or_throw(export_checkpoint({.checkpoint = dir / "run/step_00000007", .folder = dir / "hf"}));
  edit_config(dir / "hf", [](nlohmann::json& json) {
    json["model_type"] = "mistral";
    json["architectures"] = {"MistralForCausalLM"};
    json["sliding_window"] = nullptr;
  });
  const auto imported = value_or_throw(import_model({.folder = dir / "hf", .run_dir = dir / "back"}));
  const auto exported = value_or_throw(export_checkpoint({.checkpoint = imported.checkpoint, .folder = dir / "again"}));
  EXPECT_EQ(exported.architecture, "MistralForCausalLM");
  const auto json = nlohmann::json::parse(read_all(dir / "again/config.json"));
  EXPECT_EQ(json["model_type"], "mistral");
  EXPECT_TRUE(json["sliding_window"].is_null());
}

TEST(HuggingFace, what_a_mistral_config_omits_is_transformers_default) {
  const std::string base = R"({"model_type":"mistral","hidden_size":64,"intermediate_size":16,"num_hidden_layers":1,)"
                           R"("num_attention_heads":16,"vocab_size":9,"max_position_embeddings":9000)";
  const ModelConfig absent = value_or_throw(parse_config_json("c", base + "}")).model;
  EXPECT_EQ(absent.window, 4096);
  EXPECT_EQ(absent.kv_heads, 8);
  const ModelConfig null =
      value_or_throw(parse_config_json("c", base + R"(,"sliding_window":null,"num_key_value_heads":null})")).model;
  EXPECT_EQ(null.window, 0);
  EXPECT_EQ(null.kv_heads, 0);  // equal to heads
}

TEST(HuggingFace, gpt2_sizes_have_two_names_each) {
  const std::string rest = R"(,"n_layer":1,"n_head":2,"vocab_size":9,"max_position_embeddings":4})";
  const auto described = parse_config_json("c", R"({"model_type":"gpt2","hidden_size":8)" + rest);
  ASSERT_EQ(message(described), "");
  EXPECT_EQ(described.value().model.hidden, 8);
  EXPECT_EQ(described.value().model.seq_len, 4);
  EXPECT_NE(message(parse_config_json("c", R"({"model_type":"gpt2","n_embd":16,"hidden_size":8)" + rest))
                .find("n_embd: 16, but hidden_size: 8"),
            std::string::npos);
}

// A chat model: several end tokens, a template, generation settings. `tokenizer`: whether its tokenizer is included.
TEST(HuggingFace, what_generation_needs_comes_out_as_it_went_in) {
  const TemporaryFolder dir;
  Config config = gpt2();
  config.model.vocab = 257;
  config.data.tokenizer = "bytes";
  config = value_or_throw(resolve_config(config, 1));
  write_run(config, dir / "run");
  value_or_throw(export_checkpoint({.checkpoint = dir / "run/step_00000007", .folder = dir / "hf"}));
  const std::map<std::string, std::string> files = {
      {"generation_config.json", R"({"eos_token_id": [256, 10], "temperature": 0.6})"},
      {"chat_template.jinja", "{% for m in messages %}{{ m.content }}{% endfor %}"},
      {"additional_chat_templates/tool.jinja", "{{ tools }}"}};
  std::filesystem::create_directory(dir / "hf/additional_chat_templates");
  for (const auto& [name, text] : files) write_all(dir / "hf/" + name, text);
  auto settings = nlohmann::json::parse(read_all(dir / "hf/tokenizer_config.json"));
  settings["bos_token"] = "a";
  settings["pad_token"] = "b";
  write_all(dir / "hf/tokenizer_config.json", settings.dump());
  for (const bool bytes : {true, false}) {
    SCOPED_TRACE(bytes ? "tokenizer bytes" : "tokenizer.json");
    edit_config(dir / "hf", [&](nlohmann::json& json) {
      json["bos_token_id"] = 97;
      json["eos_token_id"] = {256, 10};
      json["pad_token_id"] = 98;
      if (!bytes) json.erase("trireme");
    });
    const std::string run = dir / (bytes ? "bytes" : "json"), out = dir / (bytes ? "bytes_hf" : "json_hf");
    const auto imported = import_model({.folder = dir / "hf", .run_dir = run});
    ASSERT_EQ(message(imported), "");
    EXPECT_EQ(imported.value().kept.size(), files.size() + 1);
    const auto exported = export_checkpoint({.checkpoint = run + "/checkpoints/step_00000000", .folder = out});
    ASSERT_EQ(message(exported), "");
    for (const auto& [name, text] : files) EXPECT_EQ(read_all(out + "/" + name), text) << name;
    const auto json = nlohmann::json::parse(read_all(out + "/config.json"));
    EXPECT_EQ(json["bos_token_id"], 97);
    EXPECT_EQ(json["eos_token_id"], (std::vector<int>{256, 10}));
    EXPECT_EQ(json["pad_token_id"], 98);
    const auto written = nlohmann::json::parse(read_all(out + "/tokenizer_config.json"));
    EXPECT_EQ(written["bos_token"], "a");
    EXPECT_EQ(written["pad_token"], "b");
  }
  // Another tokenizer has its own end tokens.
  const auto changed = import_model(
      {.folder = dir / "hf", .run_dir = dir / "changed", .overrides = {"data.tokenizer=" + (dir / "bytes_hf")}});
  ASSERT_EQ(message(changed), "");
  value_or_throw(export_checkpoint({.checkpoint = dir / "changed/checkpoints/step_00000000", .folder = dir / "own"}));
  EXPECT_FALSE(std::filesystem::exists(dir / "own/generation_config.json"));
  EXPECT_EQ(nlohmann::json::parse(read_all(dir / "own/config.json"))["eos_token_id"], 256);
}

TEST(HuggingFace, neither_way_overwrites_what_is_there) {
  const TemporaryFolder dir;
  write_run(gpt2(), dir / "run");
  const ExportOptions options{.checkpoint = dir / "run/step_00000007", .folder = dir / "hf"};
  value_or_throw(export_checkpoint(options));
  EXPECT_NE(message(export_checkpoint(options)).find("already contains a model"), std::string::npos);
  value_or_throw(import_model({.folder = dir / "hf", .run_dir = dir / "back"}));
  EXPECT_NE(message(import_model({.folder = dir / "hf", .run_dir = dir / "back"})).find("already contains a run"),
            std::string::npos);
}

TEST(HuggingFace, bf16_is_rounded_and_half_the_size) {
  const TemporaryFolder dir;
  write_run(llama(), dir / "run");
  const auto summary = value_or_throw(
      export_checkpoint({.checkpoint = dir / "run/step_00000007", .folder = dir / "hf", .dtype = Dtype::kBF16}));
  const auto file = value_or_throw(SafetensorsFile::open(dir / "hf/model.safetensors"));
  int64_t elements = 0;
  for (const SafetensorsEntry& entry : file.entries()) {
    EXPECT_EQ(entry.type, StoredType::kBf16);
    elements += entry.bytes() / 2;
  }
  EXPECT_EQ(summary.bytes, 2 * elements);
  bf16 second;
  std::memcpy(&second, file.data(*file.find("model.embed_tokens.weight")).data() + 2, 2);
  EXPECT_EQ(second.bits, bf16(2 * 0.37f).bits);
}

}  // namespace
}  // namespace tri::huggingface
