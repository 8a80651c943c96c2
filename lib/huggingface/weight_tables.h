// What the families of models differ in, as data: the tables behind weight_format.h.
#pragma once

#include <span>
#include <string_view>

#include "lib/huggingface/gemma_keys.h"
#include "lib/huggingface/rope_keys.h"
#include "lib/huggingface/weight_format.h"

namespace tri::huggingface {

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

// Returns the tables of all families, in the order in which weight_format_of tries them. Safe for concurrent use.
std::span<const FormatTable> format_tables();

}  // namespace tri::huggingface
