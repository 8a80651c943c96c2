// The models that both Hugging Face's transformers and this program know, as data: how their tensors are called there
// and how their elements lie (the tables stand in weight_format.cpp), and which config fields mean the same.
//
//   gpt2     GPT2LMHeadModel     layernorm, gelu (tanh form: "gelu_new"), learned positions, matrices (inputs, outputs)
//   llama    LlamaForCausalLM    rmsnorm, swiglu, rope (the same pairing of halves), GQA
//   mistral  MistralForCausalLM  llama with a window, without biases
//   qwen3    Qwen3ForCausalLM    llama with QK-norm, without biases
//
// "Native" are the names and tensors of a checkpoint of this program, "hf" those of transformers (Hugging Face).
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "lib/config/config.h"
#include "lib/model/parameter.h"

namespace tri::huggingface {

// Which rows of the native tensor, in which order, make the one of Hugging Face. A weight's rows are its outputs; a
// vector is a column.
enum class Rows {
  kAll,
  kVocab,          // without the padding
  kQuery,          // heads in order, out of our groups by key/value head (dims.h)
  kKey,            // the same
  kValue,          // the same
  kQueryKeyValue,  // all queries, all keys, all values
  kGate,           // the first half of SwiGLU's fc1
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
  std::string_view hf;      // "{}" stands for the layer
  Rows rows = Rows::kAll;
  Form form = Form::kSame;
};

struct WeightFormat {
  std::string_view model_type;  // in config.json
  std::string_view architecture;
  std::string_view prefix;  // of most names; some files leave it out
  std::span<const TensorRule> tensors;
  std::span<const std::string_view> ignored;  // names that hold no weights, or their ends after a dot
  bool zero_biases = false;                   // hf always has biases: a native model without them exports zeros
};

// The format that expresses the model; or an Error naming the config fields that none expresses.
Result<const WeightFormat*> weight_format_of(const ModelConfig& model);

// Values of config.json's bos_token_id, eos_token_id and pad_token_id, as JSON: "2", "[256, 10]". "": null, or for
// pad_token_id no key.
struct Ends {
  std::string bos, eos, pad;
};

// config.json. `tokenizer`, `step`: where the model comes from.
std::string config_json(const WeightFormat& format, const ModelConfig& model, Dtype dtype, Ends ends,
                        const std::string& tokenizer, int64_t step);

struct Described {
  const WeightFormat* format = nullptr;
  ModelConfig model;      // resolved except for what an absent field leaves open
  std::string tokenizer;  // of a model that we exported: its fingerprint; else empty
};
// Reads config.json. Error naming the key of `path` that we can't express, or that is missing.
Result<Described> parse_config_json(const std::string& path, std::string_view text);

// A tensor of Hugging Face and its place in the native one.
struct Mapped {
  std::string hf;
  std::vector<int64_t> shape;       // of hf
  const ParamSpec* spec = nullptr;  // native; null: zeros
  Rows rows = Rows::kAll;
  Form form = Form::kSame;
};
// All tensors of the model in the order of our parameters, which `parameters` (model_parameters) lists.
std::vector<Mapped> map_tensors(const WeightFormat& format, const ModelConfig& model,
                                const std::vector<ParamSpec>& parameters);

// [row of hf] = row of native.
std::vector<int64_t> row_map(Rows rows, const ModelConfig& model, int64_t our_rows);
// Elements in a row of the native tensor: 1 for vectors.
int64_t row_width(const ParamSpec& spec);

}  // namespace tri::huggingface
