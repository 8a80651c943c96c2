#include "lib/huggingface/weight_format.h"

#include <fmt/ranges.h>
#include <algorithm>
#include <nlohmann/json.hpp>
#include <numeric>

#include "lib/config/error_list.h"
#include "lib/huggingface/gemma_keys.h"
#include "lib/huggingface/rope_keys.h"

namespace tri::huggingface {
namespace {

using Json = nlohmann::ordered_json;

constexpr TensorRule kGpt2Tensors[] = {
    {modules::kTokens, Part::kWeight, "transformer.wte.weight", Rows::kVocab},
    {modules::kPositions, Part::kWeight, "transformer.wpe.weight"},
    {modules::kNorm1, Part::kWeight, "transformer.h.{}.ln_1.weight"},
    {modules::kNorm1, Part::kBias, "transformer.h.{}.ln_1.bias"},
    {modules::kQkv, Part::kWeight, "transformer.h.{}.attn.c_attn.weight", Rows::kQueryKeyValue, Form::kTransposed},
    {modules::kQkv, Part::kBias, "transformer.h.{}.attn.c_attn.bias", Rows::kQueryKeyValue},
    {modules::kProj, Part::kWeight, "transformer.h.{}.attn.c_proj.weight", Rows::kAll, Form::kTransposed},
    {modules::kProj, Part::kBias, "transformer.h.{}.attn.c_proj.bias"},
    {modules::kNorm2, Part::kWeight, "transformer.h.{}.ln_2.weight"},
    {modules::kNorm2, Part::kBias, "transformer.h.{}.ln_2.bias"},
    {modules::kFc1, Part::kWeight, "transformer.h.{}.mlp.c_fc.weight", Rows::kAll, Form::kTransposed},
    {modules::kFc1, Part::kBias, "transformer.h.{}.mlp.c_fc.bias"},
    {modules::kFc2, Part::kWeight, "transformer.h.{}.mlp.c_proj.weight", Rows::kAll, Form::kTransposed},
    {modules::kFc2, Part::kBias, "transformer.h.{}.mlp.c_proj.bias"},
    {modules::kFinalNorm, Part::kWeight, "transformer.ln_f.weight"},
    {modules::kFinalNorm, Part::kBias, "transformer.ln_f.bias"},
    {modules::kHead, Part::kWeight, "lm_head.weight", Rows::kVocab},  // untied only
};

constexpr TensorRule kLlamaTensors[] = {
    {modules::kTokens, Part::kWeight, "model.embed_tokens.weight", Rows::kVocab},
    {modules::kNorm1, Part::kWeight, "model.layers.{}.input_layernorm.weight"},
    {modules::kQkv, Part::kWeight, "model.layers.{}.self_attn.q_proj.weight", Rows::kQuery},
    {modules::kQkv, Part::kWeight, "model.layers.{}.self_attn.k_proj.weight", Rows::kKey},
    {modules::kQkv, Part::kWeight, "model.layers.{}.self_attn.v_proj.weight", Rows::kValue},
    {modules::kQkv, Part::kBias, "model.layers.{}.self_attn.q_proj.bias", Rows::kQuery},
    {modules::kQkv, Part::kBias, "model.layers.{}.self_attn.k_proj.bias", Rows::kKey},
    {modules::kQkv, Part::kBias, "model.layers.{}.self_attn.v_proj.bias", Rows::kValue},
    {modules::kQueryNorm, Part::kWeight, "model.layers.{}.self_attn.q_norm.weight"},
    {modules::kKeyNorm, Part::kWeight, "model.layers.{}.self_attn.k_norm.weight"},
    {modules::kProj, Part::kWeight, "model.layers.{}.self_attn.o_proj.weight"},
    {modules::kProj, Part::kBias, "model.layers.{}.self_attn.o_proj.bias"},
    {modules::kPostNorm1, Part::kWeight, "model.layers.{}.post_attention_layernorm.weight"},  // OLMo-2
    {modules::kNorm2, Part::kWeight, "model.layers.{}.post_attention_layernorm.weight"},
    {modules::kFc1, Part::kWeight, "model.layers.{}.mlp.gate_proj.weight", Rows::kGate},
    {modules::kFc1, Part::kWeight, "model.layers.{}.mlp.up_proj.weight", Rows::kUp},
    {modules::kFc1, Part::kBias, "model.layers.{}.mlp.gate_proj.bias", Rows::kGate},
    {modules::kFc1, Part::kBias, "model.layers.{}.mlp.up_proj.bias", Rows::kUp},
    {modules::kFc2, Part::kWeight, "model.layers.{}.mlp.down_proj.weight"},
    {modules::kFc2, Part::kBias, "model.layers.{}.mlp.down_proj.bias"},
    {modules::kPostNorm2, Part::kWeight, "model.layers.{}.post_feedforward_layernorm.weight"},
    {modules::kFinalNorm, Part::kWeight, "model.norm.weight"},
    {modules::kHead, Part::kWeight, "lm_head.weight", Rows::kVocab},  // untied only
};

constexpr TensorRule kMixtralTensors[] = {
    {modules::kTokens, Part::kWeight, "model.embed_tokens.weight", Rows::kVocab},
    {modules::kNorm1, Part::kWeight, "model.layers.{}.input_layernorm.weight"},
    {modules::kQkv, Part::kWeight, "model.layers.{}.self_attn.q_proj.weight", Rows::kQuery},
    {modules::kQkv, Part::kWeight, "model.layers.{}.self_attn.k_proj.weight", Rows::kKey},
    {modules::kQkv, Part::kWeight, "model.layers.{}.self_attn.v_proj.weight", Rows::kValue},
    {modules::kProj, Part::kWeight, "model.layers.{}.self_attn.o_proj.weight"},
    {modules::kNorm2, Part::kWeight, "model.layers.{}.post_attention_layernorm.weight"},
    {modules::kRouter, Part::kWeight, "model.layers.{}.block_sparse_moe.gate.weight"},
    {modules::kExpertsFc1, Part::kWeight, "model.layers.{0}.block_sparse_moe.experts.{1}.w1.weight", Rows::kGate},
    {modules::kExpertsFc1, Part::kWeight, "model.layers.{0}.block_sparse_moe.experts.{1}.w3.weight", Rows::kUp},
    {modules::kExpertsFc2, Part::kWeight, "model.layers.{0}.block_sparse_moe.experts.{1}.w2.weight"},
    {modules::kFinalNorm, Part::kWeight, "model.norm.weight"},
    {modules::kHead, Part::kWeight, "lm_head.weight", Rows::kVocab},  // untied only
};

constexpr TensorRule kQwen3MoeTensors[] = {
    {modules::kTokens, Part::kWeight, "model.embed_tokens.weight", Rows::kVocab},
    {modules::kNorm1, Part::kWeight, "model.layers.{}.input_layernorm.weight"},
    {modules::kQkv, Part::kWeight, "model.layers.{}.self_attn.q_proj.weight", Rows::kQuery},
    {modules::kQkv, Part::kWeight, "model.layers.{}.self_attn.k_proj.weight", Rows::kKey},
    {modules::kQkv, Part::kWeight, "model.layers.{}.self_attn.v_proj.weight", Rows::kValue},
    {modules::kQueryNorm, Part::kWeight, "model.layers.{}.self_attn.q_norm.weight"},
    {modules::kKeyNorm, Part::kWeight, "model.layers.{}.self_attn.k_norm.weight"},
    {modules::kProj, Part::kWeight, "model.layers.{}.self_attn.o_proj.weight"},
    {modules::kNorm2, Part::kWeight, "model.layers.{}.post_attention_layernorm.weight"},
    {modules::kRouter, Part::kWeight, "model.layers.{}.mlp.gate.weight"},
    {modules::kExpertsFc1, Part::kWeight, "model.layers.{0}.mlp.experts.{1}.gate_proj.weight", Rows::kGate},
    {modules::kExpertsFc1, Part::kWeight, "model.layers.{0}.mlp.experts.{1}.up_proj.weight", Rows::kUp},
    {modules::kExpertsFc2, Part::kWeight, "model.layers.{0}.mlp.experts.{1}.down_proj.weight"},
    {modules::kFinalNorm, Part::kWeight, "model.norm.weight"},
    {modules::kHead, Part::kWeight, "lm_head.weight", Rows::kVocab},  // untied only
};

constexpr TensorRule kNeoxTensors[] = {
    {modules::kTokens, Part::kWeight, "gpt_neox.embed_in.weight", Rows::kVocab},
    {modules::kNorm1, Part::kWeight, "gpt_neox.layers.{}.input_layernorm.weight"},
    {modules::kNorm1, Part::kBias, "gpt_neox.layers.{}.input_layernorm.bias"},
    {modules::kQkv, Part::kWeight, "gpt_neox.layers.{}.attention.query_key_value.weight", Rows::kByHead},
    {modules::kQkv, Part::kBias, "gpt_neox.layers.{}.attention.query_key_value.bias", Rows::kByHead},
    {modules::kProj, Part::kWeight, "gpt_neox.layers.{}.attention.dense.weight"},
    {modules::kProj, Part::kBias, "gpt_neox.layers.{}.attention.dense.bias"},
    {modules::kNorm2, Part::kWeight, "gpt_neox.layers.{}.post_attention_layernorm.weight"},
    {modules::kNorm2, Part::kBias, "gpt_neox.layers.{}.post_attention_layernorm.bias"},
    {modules::kFc1, Part::kWeight, "gpt_neox.layers.{}.mlp.dense_h_to_4h.weight"},
    {modules::kFc1, Part::kBias, "gpt_neox.layers.{}.mlp.dense_h_to_4h.bias"},
    {modules::kFc2, Part::kWeight, "gpt_neox.layers.{}.mlp.dense_4h_to_h.weight"},
    {modules::kFc2, Part::kBias, "gpt_neox.layers.{}.mlp.dense_4h_to_h.bias"},
    {modules::kFinalNorm, Part::kWeight, "gpt_neox.final_layer_norm.weight"},
    {modules::kFinalNorm, Part::kBias, "gpt_neox.final_layer_norm.bias"},
    {modules::kHead, Part::kWeight, "embed_out.weight", Rows::kVocab},  // untied only
};

constexpr TensorRule kGemmaTensors[] = {
    {modules::kTokens, Part::kWeight, "model.embed_tokens.weight", Rows::kVocab},
    {modules::kNorm1, Part::kWeight, "model.layers.{}.input_layernorm.weight"},
    {modules::kQkv, Part::kWeight, "model.layers.{}.self_attn.q_proj.weight", Rows::kQuery},
    {modules::kQkv, Part::kWeight, "model.layers.{}.self_attn.k_proj.weight", Rows::kKey},
    {modules::kQkv, Part::kWeight, "model.layers.{}.self_attn.v_proj.weight", Rows::kValue},
    {modules::kQueryNorm, Part::kWeight, "model.layers.{}.self_attn.q_norm.weight"},
    {modules::kKeyNorm, Part::kWeight, "model.layers.{}.self_attn.k_norm.weight"},
    {modules::kProj, Part::kWeight, "model.layers.{}.self_attn.o_proj.weight"},
    {modules::kPostNorm1, Part::kWeight, "model.layers.{}.post_attention_layernorm.weight"},
    {modules::kNorm2, Part::kWeight, "model.layers.{}.pre_feedforward_layernorm.weight"},
    {modules::kFc1, Part::kWeight, "model.layers.{}.mlp.gate_proj.weight", Rows::kGate},
    {modules::kFc1, Part::kWeight, "model.layers.{}.mlp.up_proj.weight", Rows::kUp},
    {modules::kFc2, Part::kWeight, "model.layers.{}.mlp.down_proj.weight"},
    {modules::kPostNorm2, Part::kWeight, "model.layers.{}.post_feedforward_layernorm.weight"},
    {modules::kFinalNorm, Part::kWeight, "model.norm.weight"},
    {modules::kHead, Part::kWeight, "lm_head.weight", Rows::kVocab},  // untied only
};

// An integer field of both formats.
struct SizeField {
  std::string_view hf;
  int ModelConfig::*native;
  bool optional = false;       // null means 0, which resolve_config fills in
  int absent = 0;              // for an optional one: transformers' default
  std::string_view also = {};  // another name that transformers also reads
};
// A key whose value is the same for all native models. On import it must be that value or `also`, which means the same;
// with `any` it does not matter.
struct FixedField {
  std::string_view hf, json, also = {};
  bool any = false;
};

// A name of an activation in config.json.
struct ActivationName {
  std::string_view hf;
  Activation native;
};

// Which linears have biases.
enum class Biases {
  kNone,
  kQkv,   // those of queries, keys and values
  kSame,  // all or none, as config.json says
  kAny,   // zeros stand for absent ones
};

// Families with experts.
enum class Experts { kNone, kMixtral, kQwen3 };

struct FormatTable {
  WeightFormat format;
  Norm norm;
  Activation activation;
  Position position;
  bool groups, window;  // may native models have: fewer key/value heads; a window
  Biases biases;
  bool tied_when_absent;
  std::string_view eps;
  double eps_when_absent;
  std::span<const SizeField> sizes, more_sizes = {};
  std::span<const FixedField> fixed;
  QkNorm qk_norm = QkNorm::kNone;
  NormPosition norm_position = NormPosition::kPre;
  std::span<const ActivationName> activations = {};  // of hidden_act, if models may have others than `activation`
  bool parallel = false;     // whether use_parallel_residual says that the block is parallel, with two norms
  bool equal_heads = false;  // head_dim is hidden / heads
  RopeNames rope = {};
  bool window_of_layers = false;  // the window counts with use_sliding_window, from layer max_window_layers on
  Gemma gemma = Gemma::kNone;
  Experts experts = Experts::kNone;
};

constexpr SizeField kGpt2Sizes[] = {
    {"vocab_size", &ModelConfig::vocab},
    {.hf = "n_embd", .native = &ModelConfig::hidden, .also = "hidden_size"},
    {"n_inner", &ModelConfig::ffn_hidden, true},
    {.hf = "n_layer", .native = &ModelConfig::layers, .also = "num_hidden_layers"},
    {.hf = "n_head", .native = &ModelConfig::heads, .also = "num_attention_heads"},
    {.hf = "n_positions", .native = &ModelConfig::seq_len, .also = "max_position_embeddings"}};
constexpr FixedField kGpt2Fixed[] = {{"activation_function", "\"gelu_new\"", "\"gelu_pytorch_tanh\""},
                                     {"scale_attn_weights", "true"},
                                     {"scale_attn_by_inverse_layer_idx", "false"},
                                     {"add_cross_attention", "false"},
                                     {.hf = "attn_pdrop", .json = "0.0", .any = true},
                                     {.hf = "embd_pdrop", .json = "0.0", .any = true},
                                     {.hf = "resid_pdrop", .json = "0.0", .any = true}};
// Masks that old versions stored alongside the weights.
constexpr std::string_view kGpt2Ignored[] = {"attn.bias", "attn.masked_bias"};

constexpr FixedField kNeoxFixed[] = {{"attention_bias", "true"},
                                     {.hf = "attention_dropout", .json = "0.0", .any = true},
                                     {.hf = "hidden_dropout", .json = "0.0", .any = true},
                                     {.hf = "classifier_dropout", .json = "0.0", .any = true}};
// The first name of each is exported.
constexpr ActivationName kNeoxActivations[] = {
    {"gelu", Activation::kGeluErf}, {"gelu_new", Activation::kGelu}, {"gelu_pytorch_tanh", Activation::kGelu}};
constexpr std::string_view kNeoxIgnored[] = {"attention.bias", "attention.masked_bias", "rotary_emb.inv_freq"};

// Of all decoder families, followed by those of one family.
constexpr SizeField kDecoderSizes[] = {{"vocab_size", &ModelConfig::vocab},
                                       {"hidden_size", &ModelConfig::hidden},
                                       {"intermediate_size", &ModelConfig::ffn_hidden},
                                       {"num_hidden_layers", &ModelConfig::layers},
                                       {"num_attention_heads", &ModelConfig::heads}};
constexpr SizeField kContext{"max_position_embeddings", &ModelConfig::seq_len};
constexpr SizeField kWindow{"sliding_window", &ModelConfig::window, true, 4096};
constexpr SizeField kNeoxSizes[] = {kContext};
constexpr SizeField kLlamaSizes[] = {{"num_key_value_heads", &ModelConfig::kv_heads, true}, kContext};
constexpr SizeField kMistralSizes[] = {{"num_key_value_heads", &ModelConfig::kv_heads, true, 8}, kContext, kWindow};
constexpr SizeField kQwen2Sizes[] = {{"num_key_value_heads", &ModelConfig::kv_heads, true, 32}, kContext, kWindow};
constexpr SizeField kQwen3Sizes[] = {{"num_key_value_heads", &ModelConfig::kv_heads, true, 32},
                                     {"head_dim", &ModelConfig::head_dim, true, 128},
                                     kContext,
                                     kWindow};
// Instead of kDecoderSizes: all layers have experts.
constexpr SizeField kMixtralBase[] = {{"vocab_size", &ModelConfig::vocab},
                                      {"hidden_size", &ModelConfig::hidden},
                                      {"intermediate_size", &ModelConfig::expert_hidden},
                                      {"num_hidden_layers", &ModelConfig::layers},
                                      {"num_attention_heads", &ModelConfig::heads}};
constexpr SizeField kMixtralSizes[] = {{"num_key_value_heads", &ModelConfig::kv_heads, true, 8},
                                       {"num_local_experts", &ModelConfig::experts, true, 8},
                                       {"num_experts_per_tok", &ModelConfig::experts_per_token, true, 2},
                                       kContext,
                                       {"sliding_window", &ModelConfig::window, true}};
constexpr SizeField kQwen3MoeSizes[] = {{"num_key_value_heads", &ModelConfig::kv_heads, true, 4},
                                        {"head_dim", &ModelConfig::head_dim, true},
                                        {"num_experts", &ModelConfig::experts, true, 128},
                                        {"num_experts_per_tok", &ModelConfig::experts_per_token, true, 8},
                                        {"moe_intermediate_size", &ModelConfig::expert_hidden, true, 768},
                                        kContext,
                                        kWindow};
constexpr FixedField kMixtralFixed[] = {{"hidden_act", "\"silu\"", "\"swish\""},
                                        {.hf = "router_jitter_noise", .json = "0.0", .any = true}};
constexpr FixedField kQwen3MoeFixed[] = {
    {"hidden_act", "\"silu\"", "\"swish\""}, {"decoder_sparse_step", "1"}, {"mlp_only_layers", "[]"}};
constexpr SizeField kGemmaSizes[] = {{"num_key_value_heads", &ModelConfig::kv_heads, true, 4},
                                     {"head_dim", &ModelConfig::head_dim, true, 256},
                                     kContext,
                                     kWindow};
constexpr FixedField kGemmaFixed[] = {{"hidden_activation", "\"gelu_pytorch_tanh\""},
                                      {"use_bidirectional_attention", "false"}};
constexpr FixedField kLlamaFixed[] = {{"hidden_act", "\"silu\"", "\"swish\""}};
// Tables that are computed from the config.
constexpr std::string_view kLlamaIgnored[] = {"rotary_emb.inv_freq", "rotary_emb.cos_cached", "rotary_emb.sin_cached"};

// What decoder families differ in; the rest is like Llama.
struct Decoder {
  std::string_view model_type, architecture;
  std::span<const SizeField> sizes;  // after kDecoderSizes
  Biases biases = Biases::kNone;
  bool window = true, window_of_layers = false;
  QkNorm qk_norm = QkNorm::kNone;
  NormPosition norm_position = NormPosition::kPre;
  double eps_when_absent = 1e-6;
  Gemma gemma = Gemma::kNone;
  Experts experts = Experts::kNone;
};
constexpr std::span<const TensorRule> tensors_of(const Decoder& family) {
  if (family.experts == Experts::kMixtral) return kMixtralTensors;
  if (family.experts == Experts::kQwen3) return kQwen3MoeTensors;
  return family.gemma != Gemma::kNone ? std::span<const TensorRule>(kGemmaTensors) : kLlamaTensors;
}
constexpr std::span<const FixedField> fixed_of(const Decoder& family) {
  if (family.experts == Experts::kMixtral) return kMixtralFixed;
  if (family.experts == Experts::kQwen3) return kQwen3MoeFixed;
  return family.gemma != Gemma::kNone ? std::span<const FixedField>(kGemmaFixed) : kLlamaFixed;
}
constexpr FormatTable decoder(const Decoder& family) {
  const bool gemma = family.gemma != Gemma::kNone;
  return {.format = {.model_type = family.model_type,
                     .architecture = family.architecture,
                     .prefix = "model.",
                     .tensors = tensors_of(family),
                     .ignored = kLlamaIgnored},
          .norm = Norm::kRmsNorm,
          .activation = gemma ? Activation::kGeglu : Activation::kSwiglu,
          .position = Position::kRope,
          .groups = true,
          .window = family.window,
          .biases = family.biases,
          .tied_when_absent = gemma,
          .eps = "rms_norm_eps",
          .eps_when_absent = family.eps_when_absent,
          .sizes = family.experts == Experts::kMixtral ? std::span<const SizeField>(kMixtralBase) : kDecoderSizes,
          .more_sizes = family.sizes,
          .fixed = fixed_of(family),
          .qk_norm = family.qk_norm,
          .norm_position = gemma ? NormPosition::kBoth : family.norm_position,
          .window_of_layers = family.window_of_layers,
          .gemma = family.gemma,
          .experts = family.experts};
}

constexpr FormatTable kFormats[] = {
    {.format = {.model_type = "gpt2",
                .architecture = "GPT2LMHeadModel",
                .prefix = "transformer.",
                .tensors = kGpt2Tensors,
                .ignored = kGpt2Ignored,
                .zero_biases = true},
     .norm = Norm::kLayerNorm,
     .activation = Activation::kGelu,
     .position = Position::kLearned,
     .groups = false,
     .window = false,
     .biases = Biases::kAny,
     .tied_when_absent = true,
     .eps = "layer_norm_epsilon",
     .eps_when_absent = 1e-5,
     .sizes = kGpt2Sizes,
     .fixed = kGpt2Fixed,
     .equal_heads = true},
    {.format = {.model_type = "gpt_neox",
                .architecture = "GPTNeoXForCausalLM",
                .prefix = "gpt_neox.",
                .tensors = kNeoxTensors,
                .ignored = kNeoxIgnored,
                .zero_biases = true},
     .norm = Norm::kLayerNorm,
     .activation = Activation::kGeluErf,
     .position = Position::kRope,
     .groups = false,
     .window = false,
     .biases = Biases::kAny,
     .tied_when_absent = false,
     .eps = "layer_norm_eps",
     .eps_when_absent = 1e-5,
     .sizes = kDecoderSizes,
     .more_sizes = kNeoxSizes,
     .fixed = kNeoxFixed,
     .activations = kNeoxActivations,
     .parallel = true,
     .equal_heads = true,
     .rope = {"rotary_emb_base", "rotary_pct", 0.25, true}},
    decoder({.model_type = "llama",
             .architecture = "LlamaForCausalLM",
             .sizes = kLlamaSizes,
             .biases = Biases::kSame,
             .window = false}),
    decoder({.model_type = "mistral", .architecture = "MistralForCausalLM", .sizes = kMistralSizes}),
    decoder({.model_type = "qwen2",
             .architecture = "Qwen2ForCausalLM",
             .sizes = kQwen2Sizes,
             .biases = Biases::kQkv,
             .window_of_layers = true}),
    decoder({.model_type = "qwen3",
             .architecture = "Qwen3ForCausalLM",
             .sizes = kQwen3Sizes,
             .window_of_layers = true,
             .qk_norm = QkNorm::kHead}),
    decoder({.model_type = "mixtral",
             .architecture = "MixtralForCausalLM",
             .sizes = kMixtralSizes,
             .eps_when_absent = 1e-5,
             .experts = Experts::kMixtral}),
    decoder({.model_type = "qwen3_moe",
             .architecture = "Qwen3MoeForCausalLM",
             .sizes = kQwen3MoeSizes,
             .window_of_layers = true,
             .qk_norm = QkNorm::kHead,
             .experts = Experts::kQwen3}),
    decoder({.model_type = "olmo2",
             .architecture = "Olmo2ForCausalLM",
             .sizes = kLlamaSizes,
             .window = false,
             .qk_norm = QkNorm::kFull,
             .norm_position = NormPosition::kPost,
             .eps_when_absent = 1e-5}),
    decoder({.model_type = "gemma2", .architecture = "Gemma2ForCausalLM", .sizes = kGemmaSizes, .gemma = Gemma::kTwo}),
    decoder({.model_type = "gemma3_text",
             .architecture = "Gemma3ForCausalLM",
             .sizes = kGemmaSizes,
             .qk_norm = QkNorm::kHead,
             .gemma = Gemma::kThree})};

std::vector<SizeField> sizes_of(const FormatTable& table) {
  std::vector<SizeField> sizes(table.sizes.begin(), table.sizes.end());
  sizes.insert(sizes.end(), table.more_sizes.begin(), table.more_sizes.end());
  return sizes;
}

const FormatTable& table_of(const WeightFormat& format) {
  for (const FormatTable& table : kFormats)
    if (table.format.model_type == format.model_type) return table;
  TRI_REQUIRE(false, "weight format {}", format.model_type);
  return kFormats[0];
}

// Adds a line for each property of the experts that the format can't express.
void expert_objections(const FormatTable& t, const ModelConfig& m, std::vector<std::string>& lines) {
  const auto objects = [&](bool set, const char* field, auto value, const char* has) {
    if (set)
      lines.push_back(
          fmt::format("model.{}: {} can't be expressed as {}, which has {}", field, value, t.format.architecture, has));
  };
  if (t.experts == Experts::kNone) return objects(m.experts > 0, "experts", m.experts, "none");
  objects(m.experts == 0, "experts", m.experts, "experts");
  objects(m.shared_experts > 0, "shared_experts", m.shared_experts, "none");
  objects(m.dense_layers > 0, "dense_layers", m.dense_layers, "none");
  objects(m.router != Router::kSoftmax, "router", enum_name(m.router), "softmax");
  objects(m.router_scale != 1, "router_scale", m.router_scale, "1");
  objects(!m.router_renormalize && t.experts == Experts::kMixtral, "router_renormalize", false, "true");
}

// Returns one line for each property of the model that the format can't express.
std::vector<std::string> objections(const FormatTable& t, const ModelConfig& m) {
  std::vector<std::string> lines;
  const auto must_be = [&](const char* field, auto value, auto expected) {
    if (value != expected)
      lines.push_back(fmt::format("model.{}: {} can't be expressed as {}, which has {}", field, enum_name(value),
                                  t.format.architecture, enum_name(expected)));
  };
  must_be("norm", m.norm, t.norm);
  if (std::ranges::find(t.activations, m.activation, &ActivationName::native) == t.activations.end())
    must_be("activation", m.activation, t.activation);
  must_be("position", m.position, t.position);
  must_be("qk_norm", m.qk_norm, t.qk_norm);
  must_be("norm_position", m.norm_position, t.norm_position);
  if (!t.parallel) must_be("block", m.block, Block::kSequential);
  if (t.parallel && m.block == Block::kParallel && m.parallel_norms != 2)
    lines.push_back(fmt::format("model.parallel_norms: {} can't be expressed as {}, which has 2", m.parallel_norms,
                                t.format.architecture));
  if (m.rope_fraction < 1 && !t.rope.rotates_parts)
    lines.push_back(fmt::format("model.rope_fraction: {} can't be expressed as {}, which rotates whole heads",
                                m.rope_fraction, t.format.architecture));
  expert_objections(t, m, lines);
  for (std::string& line : gemma_objections(t.gemma, t.format.architecture, m)) lines.push_back(std::move(line));
  if (m.kv_heads != m.heads && !t.groups)
    lines.push_back(fmt::format(
        "model.kv_heads: {} can't be expressed as {}, which has as many key/value heads as model.heads ({})",
        m.kv_heads, t.format.architecture, m.heads));
  if (int64_t{m.head_dim} * m.heads != m.hidden && t.equal_heads)
    lines.push_back(
        fmt::format("model.head_dim: {} can't be expressed as {}, whose heads have model.hidden {} / "
                    "model.heads {}",
                    m.head_dim, t.format.architecture, m.hidden, m.heads));
  if (m.window > 0 && !t.window)
    lines.push_back(fmt::format("model.window: {} can't be expressed as {}, which attends to all earlier tokens",
                                m.window, t.format.architecture));
  if (m.bias && t.biases != Biases::kSame && t.biases != Biases::kAny)
    lines.push_back(fmt::format("model.bias: {} can't be expressed as {}", m.bias, t.format.architecture));
  const bool qkv_bias = has_qkv_bias(m), expected = t.biases == Biases::kQkv || (t.biases == Biases::kSame && m.bias);
  if (qkv_bias != expected && t.biases != Biases::kAny)
    lines.push_back(fmt::format("model.qkv_bias: {} can't be expressed as {}{}", qkv_bias, t.format.architecture,
                                t.biases == Biases::kSame ? ", where it equals model.bias" : ""));
  return lines;
}

// Returns the number or flag of a key that may be absent. Fails, naming the key, if it has another type.
Result<double> number_of(const std::string& path, const Json& json, std::string_view key, double absent) {
  const auto value = json.find(std::string(key));
  if (value == json.end()) return absent;
  if (!value->is_number()) return file_error("{}: {}: {} is not a number", path, key, value->dump());
  return value->get<double>();
}
Result<bool> flag_of(const std::string& path, const Json& json, std::string_view key, bool absent) {
  const auto value = json.find(std::string(key));
  if (value == json.end()) return absent;
  if (!value->is_boolean()) return file_error("{}: {}: {} is neither true nor false", path, key, value->dump());
  return value->get<bool>();
}

// The value of a size: under its name, or the other name that transformers reads. Null: there is none.
Result<const Json*> size_value(const std::string& path, const Json& json, const SizeField& field) {
  const auto value = json.find(std::string(field.hf)), other = json.find(std::string(field.also));
  if (field.also.empty() || other == json.end()) return value == json.end() ? nullptr : &*value;
  if (value != json.end() && *value != *other)
    return file_error("{}: {}: {}, but {}: {}; both name the same size", path, field.hf, value->dump(), field.also,
                      other->dump());
  return &*other;
}

// Qwen: the window counts with use_sliding_window alone, and in the layers from max_window_layers on.
Result<void> read_window_layers(const std::string& path, const Json& json, ModelConfig& model) {
  const auto used = flag_of(path, json, "use_sliding_window", false);
  if (!used) return used.error();
  const auto first = number_of(path, json, "max_window_layers", 28);
  if (!first) return first.error();
  if (!used.value() || first.value() >= model.layers) model.window = 0;
  if (model.window > 0 && first.value() > 0)
    return file_error(
        "{}: max_window_layers: {} is not supported with use_sliding_window and {} layers; all layers "
        "must have the same attention",
        path, first.value(), model.layers);
  return {};
}

// Reads hidden_act of a family with several activations.
Result<void> read_activation(const std::string& path, const Json& json, std::span<const ActivationName> names,
                             ModelConfig& model) {
  const auto value = json.find("hidden_act");
  if (names.empty() || value == json.end() || value->is_null()) return {};
  const auto found = std::ranges::find_if(names, [&](const ActivationName& name) { return *value == name.hf; });
  if (found != names.end()) {
    model.activation = found->native;
    return {};
  }
  std::vector<std::string_view> known;
  for (const ActivationName& name : names) known.push_back(name.hf);
  return file_error("{}: hidden_act: {} is not supported; supported are {}", path, value->dump(),
                    fmt::join(known, ", "));
}

Result<void> read_biases(const std::string& path, const Json& json, Biases biases, ModelConfig& model) {
  model.bias = false;
  if (biases == Biases::kAny) {
    model.bias = true;
    return {};
  }
  if (biases == Biases::kQkv) {  // whatever attention_bias says
    model.qkv_bias = AutoFlag::kTrue;
    return {};
  }
  const auto attention = flag_of(path, json, "attention_bias", false), mlp = flag_of(path, json, "mlp_bias", false);
  for (const auto& flag : {attention, mlp})
    if (!flag) return flag.error();
  if (attention.value() != mlp.value())
    return file_error("{}: attention_bias {} and mlp_bias {} are not supported; they must be equal", path,
                      attention.value(), mlp.value());
  if (attention.value() && biases == Biases::kNone)
    return file_error("{}: attention_bias: true is not supported with this model_type", path);
  model.bias = attention.value();
  return {};
}

Result<Described> read_model(const std::string& path, const Json& json) {
  const Json type_value = json.value("model_type", Json());
  const std::string type = type_value.is_string() ? type_value.get<std::string>() : "";
  const FormatTable* table = nullptr;
  std::vector<std::string_view> known;
  for (const FormatTable& candidate : kFormats) {
    known.push_back(candidate.format.model_type);
    if (candidate.format.model_type == type) table = &candidate;
  }
  if (type_value.is_null())
    return file_error("{}: model_type is missing; add it as one of {}", path, fmt::join(known, ", "));
  if (table == nullptr)
    return file_error("{}: model_type: {} is not supported; those that are: {}", path, type_value.dump(),
                      fmt::join(known, ", "));
  Described described{.format = &table->format};
  ModelConfig& m = described.model;
  m.norm = table->norm;
  m.activation = table->activation;
  m.position = table->position;
  m.qk_norm = table->qk_norm;
  m.norm_position = table->norm_position;
  m.block = Block::kSequential;
  if (auto read = read_activation(path, json, table->activations, m); !read) return read.error();
  if (table->parallel) {
    const auto parallel = flag_of(path, json, "use_parallel_residual", true);
    if (!parallel) return parallel.error();
    if (parallel.value()) {
      m.block = Block::kParallel;
      m.parallel_norms = 2;
    }
  }
  m.kv_heads = m.head_dim = m.ffn_hidden = m.window = 0;
  for (const SizeField& field : sizes_of(*table)) {
    const auto found = size_value(path, json, field);
    if (!found) return found.error();
    const Json* const value = found.value();
    if (value == nullptr || value->is_null()) {
      if (!field.optional) return file_error("{}: {} is missing", path, field.hf);
      if (value == nullptr) m.*field.native = field.absent;
      continue;
    }
    if (!value->is_number_integer() || *value < 1 || *value > (1 << 27))
      return file_error("{}: {}: {} is not a valid size", path, field.hf, value->dump());
    m.*field.native = value->get<int>();
  }
  if (table->experts == Experts::kQwen3) {
    const auto renormalize = flag_of(path, json, "norm_topk_prob", false);
    if (!renormalize) return renormalize.error();
    m.router_renormalize = renormalize.value();
  }
  if (table->window_of_layers)
    if (auto read = read_window_layers(path, json, m); !read) return read.error();
  if (table->gemma != Gemma::kNone) {
    if (auto read = read_gemma(path, json, table->gemma, m); !read) return read.error();
  } else {
    fit_window(m);
  }
  if (const auto kinds = json.find("layer_types");
      table->gemma == Gemma::kNone && kinds != json.end() && kinds->is_array())
    for (const Json& kind : *kinds)
      if (kind != (m.window > 0 ? "sliding_attention" : "full_attention"))
        return file_error("{}: layer_types: {} is not supported; all layers must have the same attention", path,
                          kind.dump());
  for (const FixedField& field : table->fixed) {
    const auto value = json.find(std::string(field.hf));
    if (value == json.end() || value->is_null()) continue;
    const std::string found = value->dump();
    if (!field.any && found != field.json && found != field.also)
      return file_error("{}: {}: {} is not supported; only {} is", path, field.hf, found, field.json);
  }
  if (const auto code = json.find("auto_map"); code != json.end() && !code->is_null())
    return file_error("{}: auto_map: models whose code is in their folder can't be imported", path);
  if (const auto quantized = json.find("quantization_config"); quantized != json.end() && !quantized->is_null())
    return file_error("{}: quantization_config: quantized weights can't be imported; save the model in bf16 or fp32",
                      path);
  if (const auto native = json.find("trireme"); native != json.end())
    described.tokenizer = native->value("tokenizer", "");
  const auto eps = number_of(path, json, table->eps, table->eps_when_absent);
  if (!eps) return eps.error();
  const auto tied = flag_of(path, json, "tie_word_embeddings", table->tied_when_absent);
  if (!tied) return tied.error();
  const auto init_std = number_of(path, json, "initializer_range", m.init_std);
  if (!init_std) return init_std.error();
  m.norm_eps = eps.value();
  m.tie_embeddings = tied.value();
  m.init_std = init_std.value();
  if (m.position == Position::kLearned) return described;

  if (auto read = read_biases(path, json, table->biases, m); !read) return read.error();
  if (const auto head = json.find("head_dim"); head != json.end() && !head->is_null()) {
    if (!head->is_number_integer() || *head < 1 || *head > (1 << 16))
      return file_error("{}: head_dim: {} is not the size of a head", path, head->dump());
    m.head_dim = head->get<int>();
  }
  auto rope = table->gemma == Gemma::kNone ? read_rope(path, json, table->rope, m)
                                           : read_gemma_rope(path, json, table->gemma, m);
  if (!rope) return rope.error();
  return described;
}

}  // namespace

Result<const WeightFormat*> weight_format_of(const ModelConfig& model, std::string_view preferred) {
  for (const FormatTable& table : kFormats)
    if (table.format.model_type == preferred && objections(table, model).empty()) return &table.format;
  const FormatTable* nearest = nullptr;
  std::vector<std::string> fewest;
  for (const FormatTable& table : kFormats) {
    std::vector<std::string> lines = objections(table, model);
    if (lines.empty()) return &table.format;
    if (nearest == nullptr || lines.size() < fewest.size()) {
      nearest = &table;
      fewest = std::move(lines);
    }
  }
  return join_errors(fewest);
}

std::string config_json(const WeightFormat& format, const ModelConfig& model, Dtype dtype, Ends ends,
                        const std::string& tokenizer, int64_t step) {
  const FormatTable& table = table_of(format);
  Json json = {{"architectures", {format.architecture}}, {"model_type", format.model_type}};
  json["torch_dtype"] = dtype == Dtype::kF32 ? "float32" : "bfloat16";
  for (const SizeField& field : sizes_of(table)) {
    Json& value = json[std::string(field.hf)];
    if (field.native != &ModelConfig::window || model.window > 0) value = model.*field.native;
  }
  if (table.window_of_layers) {
    json["use_sliding_window"] = model.window > 0;
    json["max_window_layers"] = model.window > 0 ? 0 : model.layers;
  }
  if (table.experts == Experts::kQwen3) json["norm_topk_prob"] = model.router_renormalize;
  for (const FixedField& field : table.fixed) json[std::string(field.hf)] = Json::parse(field.json);
  if (const auto name = std::ranges::find(table.activations, model.activation, &ActivationName::native);
      name != table.activations.end())
    json["hidden_act"] = name->hf;
  if (table.parallel) json["use_parallel_residual"] = model.block == Block::kParallel;
  json[std::string(table.eps)] = model.norm_eps;
  json["initializer_range"] = model.init_std;
  json["tie_word_embeddings"] = model.tie_embeddings;
  json["bos_token_id"] = ends.bos.empty() ? Json() : Json::parse(ends.bos);
  json["eos_token_id"] = ends.eos.empty() ? Json() : Json::parse(ends.eos);
  if (!ends.pad.empty()) json["pad_token_id"] = Json::parse(ends.pad);
  if (model.position == Position::kRope) {
    if (table.biases == Biases::kNone || table.biases == Biases::kSame)
      json["attention_bias"] = json["mlp_bias"] = model.bias;
    if (!table.equal_heads) json["head_dim"] = model.head_dim;
    write_rope(model, table.rope, json);
    if (table.gemma != Gemma::kNone) write_gemma(table.gemma, model, json);
  }
  json["trireme"] = {{"step", step}, {"tokenizer", tokenizer}};
  return json.dump(2) + "\n";
}

Result<Described> parse_config_json(const std::string& path, std::string_view text) {
  try {
    const Json json = Json::parse(text);
    if (!json.is_object()) return file_error("{}: not a JSON object", path);
    return read_model(path, json);
  } catch (const Json::exception& problem) {
    return file_error("{}: {}", path, problem.what());
  }
}

int64_t row_width(const ParamSpec& spec) {
  return spec.shape.size() == 1 || is_bias(spec.name) ? 1 : spec.shape.back();
}

std::vector<int64_t> row_map(Rows rows, const ModelConfig& model, int64_t our_rows) {
  const int64_t size = model.head_dim, group = model.heads / model.kv_heads, half = size / 2;
  const int64_t rotated = rotated_elements(model.rope_fraction, model.head_dim) / 2;  // pairs
  std::vector<int64_t> map;
  const auto add = [&](int64_t first, int64_t count) {
    for (int64_t row = first; row < first + count; ++row) map.push_back(row);
  };
  // Adds a query or key: both halves of the pairs that rotate, then the rest.
  const auto add_pairs = [&](int64_t first) {
    add(first, rotated);
    add(first + half, rotated);
    add(first + rotated, half - rotated);
    add(first + half + rotated, size - half - rotated);
  };
  // Each key/value head has G queries, a key and a value; adds its heads [from, from + count).
  const auto add_heads_of = [&](int64_t kv, int64_t from, int64_t count) {
    for (int64_t head = from; head < from + count; ++head) {
      const int64_t first = (kv * (group + 2) + head) * size;
      head <= group ? add_pairs(first) : add(first, size);
    }
  };
  const auto add_heads = [&](int64_t from, int64_t count) {
    for (int64_t kv = 0; kv < model.kv_heads; ++kv) add_heads_of(kv, from, count);
  };
  switch (rows) {
    case Rows::kAll:
      add(0, our_rows);
      break;
    case Rows::kVocab:
      add(0, model.vocab);
      break;
    case Rows::kQuery:
      add_heads(0, group);
      break;
    case Rows::kKey:
      add_heads(group, 1);
      break;
    case Rows::kValue:
      add_heads(group + 1, 1);
      break;
    case Rows::kQueryKeyValue:
      add_heads(0, group);
      add_heads(group, 1);
      add_heads(group + 1, 1);
      break;
    case Rows::kByHead:
      add_heads(0, group + 2);
      break;
    case Rows::kGate:
      add(0, our_rows / 2);
      break;
    case Rows::kUp:
      add(our_rows / 2, our_rows / 2);
      break;
  }
  return map;
}

std::vector<int64_t> row_map(const Mapped& mapped, const ModelConfig& model) {
  const int64_t all = mapped.spec->numel() / row_width(*mapped.spec);
  if (mapped.expert < 0) return row_map(mapped.rows, model, all);
  const int64_t of_expert = all / mapped.spec->shape[0];
  std::vector<int64_t> rows = row_map(mapped.rows, model, of_expert);
  for (int64_t& row : rows) row += mapped.expert * of_expert;
  return rows;
}

std::vector<Mapped> map_tensors(const WeightFormat& format, const ModelConfig& model,
                                const std::vector<ParamSpec>& parameters) {
  const auto find = [&](const std::string& name) {
    const auto at = std::find_if(parameters.begin(), parameters.end(), [&](const auto& p) { return p.name == name; });
    return at == parameters.end() ? nullptr : &*at;
  };
  std::vector<Mapped> all;
  const auto add = [&](const TensorRule& rule, int layer) {
    const bool bias = rule.part == Part::kBias;
    const std::string name = bias ? bias_of(rule.module, layer) : weight_of(rule.module, layer);
    // The name of a tensor of experts is that of the first.
    Mapped mapped{
        .hf = fmt::format(fmt::runtime(rule.hf), layer, 0), .spec = find(name), .rows = rule.rows, .form = rule.form};
    if (mapped.spec == nullptr && !(bias && format.zero_biases)) return;
    // A bias that the native model lacks has as many elements as its weight has rows.
    const ParamSpec* shaped = mapped.spec;
    if (shaped == nullptr) shaped = find(weight_of(rule.module, layer));
    TRI_REQUIRE(shaped != nullptr, "{}: neither it nor its weight", name);
    const int64_t width = row_width(*shaped);
    if (shaped->experts) {
      for (int expert = 0; expert < model.experts; ++expert) {
        mapped.hf = fmt::format(fmt::runtime(rule.hf), layer, expert);
        mapped.expert = expert;
        mapped.shape = {static_cast<int64_t>(row_map(mapped, model).size()), width};
        all.push_back(mapped);
      }
      return;
    }
    const auto count = static_cast<int64_t>(row_map(rule.rows, model, shaped->numel() / width).size());
    if (bias || width == 1)
      mapped.shape = {count};
    else
      mapped.shape = rule.form == Form::kSame ? std::vector{count, width} : std::vector{width, count};
    all.push_back(std::move(mapped));
  };
  // The rules of the layers are adjacent and are applied once per layer.
  const auto of_layers = [](const TensorRule& rule) { return of_layer(rule.module); };
  const auto first = std::find_if(format.tensors.begin(), format.tensors.end(), of_layers);
  const auto last = std::find_if_not(first, format.tensors.end(), of_layers);
  for (auto rule = format.tensors.begin(); rule != first; ++rule) add(*rule, kNoLayer);
  for (int layer = 0; layer < model.layers; ++layer)
    for (auto rule = first; rule != last; ++rule) add(*rule, layer);
  for (auto rule = last; rule != format.tensors.end(); ++rule) add(*rule, kNoLayer);
  for (const ParamSpec& spec : parameters)
    TRI_REQUIRE(std::ranges::find(all, &spec, &Mapped::spec) != all.end(), "{} has no rule for {}", format.architecture,
                spec.name);
  return all;
}

}  // namespace tri::huggingface
