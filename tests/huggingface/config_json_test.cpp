#include <gtest/gtest.h>

#include "io/base/json.h"
#include "lib/config/presets.h"
#include "lib/huggingface/gemma_keys.h"
#include "lib/huggingface/weight_format.h"
#include "tests/huggingface/models.h"

namespace tri::huggingface {
namespace {

TEST(ConfigJson, a_neox_config_has_names_of_its_own) {
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

TEST(ConfigJson, a_model_that_no_format_expresses_is_refused_by_its_field) {
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

TEST(ConfigJson, fields_of_gemma_are_refused_in_other_families_and_other_values_in_gemma) {
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
TEST(ConfigJson, keys_of_gemma_are_read_as_transformers_does) {
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

TEST(ConfigJson, a_config_that_we_cannot_express_is_refused_by_its_key) {
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

TEST(ConfigJson, keys_that_old_configs_lack_have_their_meaning_of_then) {
  const auto described = value_or_throw(
      parse_config_json("c", R"({"model_type":"llama","hidden_size":8,"intermediate_size":16,"num_hidden_layers":1,
               "num_attention_heads":2,"vocab_size":9,"max_position_embeddings":4})"));
  EXPECT_EQ(described.model.kv_heads, 0);  // equal to heads
  EXPECT_EQ(described.model.rope_theta, 10000);
  EXPECT_EQ(described.model.norm_eps, 1e-6);
  EXPECT_FALSE(described.model.tie_embeddings || described.model.bias);
}

TEST(ConfigJson, keys_of_both_versions_of_transformers_are_read_as_version_5_does) {
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
TEST(ConfigJson, presets_are_the_published_models) {
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

TEST(ConfigJson, scaled_rope_is_read_from_the_keys_of_both_versions) {
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
TEST(ConfigJson, scaled_rope_is_written_for_both_versions) {
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

TEST(ConfigJson, what_a_qwen3_config_omits_is_transformers_default) {
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

TEST(ConfigJson, what_a_qwen2_config_omits_is_transformers_default) {
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

TEST(ConfigJson, what_a_mistral_config_omits_is_transformers_default) {
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

TEST(ConfigJson, gpt2_sizes_have_two_names_each) {
  const std::string rest = R"(,"n_layer":1,"n_head":2,"vocab_size":9,"max_position_embeddings":4})";
  const auto described = parse_config_json("c", R"({"model_type":"gpt2","hidden_size":8)" + rest);
  ASSERT_EQ(message(described), "");
  EXPECT_EQ(described.value().model.hidden, 8);
  EXPECT_EQ(described.value().model.seq_len, 4);
  EXPECT_NE(message(parse_config_json("c", R"({"model_type":"gpt2","n_embd":16,"hidden_size":8)" + rest))
                .find("n_embd: 16, but hidden_size: 8"),
            std::string::npos);
}

}  // namespace
}  // namespace tri::huggingface
