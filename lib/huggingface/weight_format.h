// The models that both Hugging Face's transformers and this program support, as data: their tensor names there, the
// order of their elements (tables in weight_tables.cpp), and which config fields mean the same.
//
//   gpt2     GPT2LMHeadModel     layernorm, gelu (tanh form: "gelu_new"), learned positions, matrices (inputs, outputs)
//   gpt_neox GPTNeoXForCausalLM  layernorm, gelu (any form), rope of a part of a head, biases; parallel or sequential
//   llama    LlamaForCausalLM    rmsnorm, swiglu, rope (the same pairing of halves), GQA
//   mistral  MistralForCausalLM  llama with a window, without biases
//   qwen2    Qwen2ForCausalLM    llama with biases of queries, keys and values alone; with a window or without
//   qwen3    Qwen3ForCausalLM    llama with QK-norm, without biases; with a window or without
//   olmo2    Olmo2ForCausalLM    llama with norms of outputs and QK-norm over the full width, without biases
//   gemma2   Gemma2ForCausalLM   four norms a layer, norm_offset, geglu, scaled embeddings, softcaps, layer_pattern
//   mixtral  MixtralForCausalLM  mistral with experts in all layers, whose weights are renormalized
//   qwen3_moe    Qwen3MoeForCausalLM  qwen3 with experts in all layers
//   gemma3_text  Gemma3ForCausalLM  gemma2 with QK-norm and rope_theta_local, without a softcap of scores
// Formats with rope support each kind of model.rope_scaling.
//
// "Native" are the names and tensors of this program's checkpoints, "hf" those of transformers (Hugging Face).
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "lib/config/config.h"
#include "lib/model/parameter.h"

namespace tri::huggingface {

// Which rows of the native tensor form the Hugging Face tensor, and in which order. A weight's rows are its outputs; a
// vector is a column. Within queries and keys of which only a part rotates, the order is that of kernels/rope.h.
enum class Rows {
  kAll,
  kVocab,          // without the padding
  kQuery,          // heads in order, taken from the native groups by key/value head (dims.h)
  kKey,            // heads in order
  kValue,          // heads in order
  kQueryKeyValue,  // all queries, all keys, all values
  kByHead,         // as in native, for each head its query, key and value
  kGate,           // the first half of a gated fc1
  kUp,             // the second half
};
enum class Form {
  kSame,
  kTransposed,  // (inputs, outputs): GPT-2's Conv1D
};

enum class Part { kWeight, kBias };

struct TensorRule {
  std::string_view module;  // native: parameter_names.h
  Part part;                // of the module
  std::string_view hf;      // "{}" or "{0}" is the layer's index, "{1}" the expert's
  Rows rows = Rows::kAll;
  Form form = Form::kSame;
};

struct WeightFormat {
  std::string_view model_type;  // in config.json
  std::string_view architecture;
  std::string_view prefix;  // of most names; some files omit it
  std::span<const TensorRule> tensors;
  std::span<const std::string_view> ignored;  // names, or their ends after a dot, that hold no weights
  bool zero_biases = false;                   // hf always has biases: a native model without them exports zeros
};

// Returns the format that expresses the model: `preferred` (a model_type; may be "") if it does, else the first one.
// Fails with the config fields that none expresses.
Result<const WeightFormat*> weight_format_of(const ModelConfig& model, std::string_view preferred = "");

// Values of config.json's bos_token_id, eos_token_id and pad_token_id, as JSON: "2", "[256, 10]". "": null, or for
// pad_token_id no key.
struct Ends {
  std::string bos, eos, pad;
};

// Returns config.json. `tokenizer`, `step`: the origin of the model.
std::string config_json(const WeightFormat& format, const ModelConfig& model, Dtype dtype, Ends ends,
                        const std::string& tokenizer, int64_t step);

struct Described {
  const WeightFormat* format = nullptr;
  ModelConfig model;      // resolved except for absent fields
  std::string tokenizer;  // the fingerprint, for a model that this program exported; else empty
};
// Reads config.json. Fails, naming the key of `path`, if it is missing or this program can't express it.
Result<Described> parse_config_json(const std::string& path, std::string_view text);

// A Hugging Face tensor and its position in the native one.
struct Mapped {
  std::string hf;
  std::vector<int64_t> shape;       // of hf
  const ParamSpec* spec = nullptr;  // native; null: zeros
  Rows rows = Rows::kAll;
  Form form = Form::kSame;
  int expert = -1;  // of spec->experts: hf is a tensor of this expert alone
};
// Returns all tensors of the model in the order of the native `parameters` (model_parameters), each of which has one.
std::vector<Mapped> map_tensors(const WeightFormat& format, const ModelConfig& model,
                                const std::vector<ParamSpec>& parameters);

// Returns [row of hf] = row of native.
std::vector<int64_t> row_map(Rows rows, const ModelConfig& model, int64_t our_rows);
// The same for a tensor, among all rows of the native one.
std::vector<int64_t> row_map(const Mapped& mapped, const ModelConfig& model);
// Returns the elements in a row of the native tensor: 1 for vectors.
int64_t row_width(const ParamSpec& spec);

}  // namespace tri::huggingface
