#include "lib/huggingface/weight_tables.h"

#include <algorithm>
#include <array>
#include <iterator>

namespace tri::huggingface {
namespace {

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

// Decoder families: the parts that most of them share, and those of one family.
constexpr TensorRule kAttentionTensors[] = {
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
};
constexpr TensorRule kMlpTensors[] = {
    {modules::kFc1, Part::kWeight, "model.layers.{}.mlp.gate_proj.weight", Rows::kGate},
    {modules::kFc1, Part::kWeight, "model.layers.{}.mlp.up_proj.weight", Rows::kUp},
    {modules::kFc1, Part::kBias, "model.layers.{}.mlp.gate_proj.bias", Rows::kGate},
    {modules::kFc1, Part::kBias, "model.layers.{}.mlp.up_proj.bias", Rows::kUp},
    {modules::kFc2, Part::kWeight, "model.layers.{}.mlp.down_proj.weight"},
    {modules::kFc2, Part::kBias, "model.layers.{}.mlp.down_proj.bias"},
};
constexpr TensorRule kNorm2Tensors[] = {
    {modules::kNorm2, Part::kWeight, "model.layers.{}.post_attention_layernorm.weight"},
};
constexpr TensorRule kGemmaNorm2Tensors[] = {
    {modules::kNorm2, Part::kWeight, "model.layers.{}.pre_feedforward_layernorm.weight"},
};
constexpr TensorRule kPostNorm1Tensors[] = {
    {modules::kPostNorm1, Part::kWeight, "model.layers.{}.post_attention_layernorm.weight"},
};
constexpr TensorRule kPostNorm2Tensors[] = {
    {modules::kPostNorm2, Part::kWeight, "model.layers.{}.post_feedforward_layernorm.weight"},
};
constexpr TensorRule kMixtralExpertTensors[] = {
    {modules::kRouter, Part::kWeight, "model.layers.{}.block_sparse_moe.gate.weight"},
    {modules::kExpertsFc1, Part::kWeight, "model.layers.{0}.block_sparse_moe.experts.{1}.w1.weight", Rows::kGate},
    {modules::kExpertsFc1, Part::kWeight, "model.layers.{0}.block_sparse_moe.experts.{1}.w3.weight", Rows::kUp},
    {modules::kExpertsFc2, Part::kWeight, "model.layers.{0}.block_sparse_moe.experts.{1}.w2.weight"},
};
constexpr TensorRule kQwen3ExpertTensors[] = {
    {modules::kRouter, Part::kWeight, "model.layers.{}.mlp.gate.weight"},
    {modules::kExpertsFc1, Part::kWeight, "model.layers.{0}.mlp.experts.{1}.gate_proj.weight", Rows::kGate},
    {modules::kExpertsFc1, Part::kWeight, "model.layers.{0}.mlp.experts.{1}.up_proj.weight", Rows::kUp},
    {modules::kExpertsFc2, Part::kWeight, "model.layers.{0}.mlp.experts.{1}.down_proj.weight"},
};
constexpr TensorRule kHeadTensors[] = {
    {modules::kFinalNorm, Part::kWeight, "model.norm.weight"},
    {modules::kHead, Part::kWeight, "lm_head.weight", Rows::kVocab},  // untied only
};
template <size_t... kSizes>
constexpr auto join(const TensorRule (&... parts)[kSizes]) {
  std::array<TensorRule, (kSizes + ...)> all{};
  auto end = all.begin();
  ((end = std::copy(std::begin(parts), std::end(parts), end)), ...);
  return all;
}
// A rule does not apply to a model that lacks its tensor.
constexpr auto kLlamaTensors =
    join(kAttentionTensors, kPostNorm1Tensors, kNorm2Tensors, kMlpTensors, kPostNorm2Tensors, kHeadTensors);
constexpr auto kMixtralTensors = join(kAttentionTensors, kNorm2Tensors, kMixtralExpertTensors, kHeadTensors);
constexpr auto kQwen3MoeTensors = join(kAttentionTensors, kNorm2Tensors, kQwen3ExpertTensors, kHeadTensors);
constexpr auto kGemmaTensors =
    join(kAttentionTensors, kPostNorm1Tensors, kGemmaNorm2Tensors, kMlpTensors, kPostNorm2Tensors, kHeadTensors);

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
  if (family.gemma != Gemma::kNone) return kGemmaTensors;
  return kLlamaTensors;
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

}  // namespace

std::span<const FormatTable> format_tables() { return kFormats; }

}  // namespace tri::huggingface
