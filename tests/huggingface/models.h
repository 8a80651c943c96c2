// Small models of every family, and checkpoints of them.
#pragma once

#include <cmath>
#include <map>
#include <string>

#include "io/checkpoint/folder.h"
#include "io/checkpoint/shard_writer.h"
#include "lib/checkpoint/weights.h"
#include "lib/config/config.h"
#include "lib/model/parameter.h"

namespace tri::huggingface {

inline Config gpt2() {
  Config c;
  c.model = {.layers = 2, .hidden = 12, .heads = 3, .vocab = 300, .seq_len = 8};
  return value_or_throw(resolve_config(c, 1));
}

inline Config llama() {
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

inline Config neox() {
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
inline std::map<std::string, Config> models() {
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
inline void write_run(const Config& config, const std::string& dir) {
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

}  // namespace tri::huggingface
