// The one parameter list: name, global shape, tensor-parallel share, initialisation, weight decay. Sharding, start
// values, flat buffers, memory estimates and checkpoints all derive from it.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "kernels/random.h"
#include "lib/config/config.h"
#include "lib/model/parameter_names.h"
#include "lib/parallel/mesh.h"

namespace tri {

// How the gradients of a parameter are completed beyond dp.
enum class GradScope {
  kSplit,       // divided over tp: complete on this rank
  kTied,        // token embedding shared with the head, when first and last stage both hold it: summed over the two
  kReplicated,  // in full on every tp rank, each of which saw its local rows only: summed over tp
};

enum class InitRule { kNormal, kZeros, kOnes };

struct ParamSpec {
  std::string name;            // parameter_names.h
  std::vector<int64_t> shape;  // global
  int split_dim = -1;          // dim divided over tp into equal contiguous parts; -1: replicated
  GradScope scope = GradScope::kSplit;
  InitRule init = InitRule::kZeros;
  float init_std = 0.0f;
  int64_t valid_rows = -1;  // rows of dim 0 that exist; the padding beyond starts, and stays, zero. -1: all
  bool decay = false;       // matrices decay and have a LAMB trust ratio; norms and biases do not
  bool tied_copy = false;   // the head's copy of the embedding on the last stage: counted once in norms
  int64_t fp8_slot = -1;    // its slot in Fp8Tensors where FP8 codes are kept of it, and nothing in compute precision

  int64_t numel() const;
  std::vector<int64_t> local_shape(int tp_size) const;
  int64_t local_numel(int tp_size) const;
};

// A parameter of this rank with its memory. Under ZeRO-2 the gradient has none of its own: see ParameterHooks.
struct Parameter {
  ParamSpec spec;
  Tensor weight;  // local shape, compute dtype or FP8 codes
  int chunk = 0;
  int index = 0;  // in the chunk's list
};

// The weight of a module, which must be among `parameters`.
const Parameter* find_weight(const std::vector<Parameter>& parameters, std::string_view module, int layer = kNoLayer);
// Its bias; null where the model has none there.
const Parameter* find_bias(const std::vector<Parameter>& parameters, std::string_view module, int layer = kNoLayer);

// Global layers [first, first + count) of a virtual stage.
struct LayerRange {
  int first = 0, count = 0;
};
LayerRange layers_of(const Config& config, Axis pp, int chunk);

// Parameters of `chunk` on pp rank `pp.rank`, in the order of their use in the forward pass; backward completes their
// gradients in exactly the reverse order.
std::vector<ParamSpec> chunk_parameters(const Config& config, Axis pp, int chunk);

// All parameters of the model, each once.
std::vector<ParamSpec> model_parameters(const Config& config);

// How this rank's part starts where `spec.init` is kNormal, in local element order; `out` and `begin` are the caller's.
// An element is a pure function of (seed, name, global element).
NormalValues normal_start(const ParamSpec& spec, Axis tp, uint64_t seed);

int head_size(const ModelConfig& model);  // HS

// Where the layers get gradient memory, and whom they tell. The layers call, in this order for each use:
//   before_use(p)       the weight is about to be read on the compute stream
//   gradient(p)         where to add the gradient, local shape, f32; valid until gradient_ready(p)
//   gradient_target(p)  the same for a GEMM, which can as well overwrite: it says which
//   gradient_ready(p)   the last addition of this backward pass is enqueued
class ParameterHooks {
 public:
  struct GradientTarget {
    Tensor tensor;
    float beta;  // 0: nothing was added yet, what stands there is to be overwritten
  };

  virtual ~ParameterHooks() = default;
  // Before the first use in the backward pass of a microbatch.
  virtual void begin_backward(int chunk, int microbatch) = 0;
  virtual void before_use(const Parameter& parameter) = 0;
  virtual Tensor gradient(const Parameter& parameter) = 0;
  virtual GradientTarget gradient_target(const Parameter& parameter) = 0;
  virtual void gradient_ready(const Parameter& parameter) = 0;
};

}  // namespace tri
