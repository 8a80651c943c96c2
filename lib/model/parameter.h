// The list of all parameters: name, global shape, the axes over which a parameter is sharded and its gradient reduced,
// initialisation, weight decay. Sharding, start values, flat buffers, memory estimates and checkpoints derive from it.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "kernels/random.h"
#include "lib/config/config.h"
#include "lib/model/layer_spec.h"
#include "lib/model/parameter_names.h"
#include "lib/parallel/mesh.h"

namespace tri {

enum class InitRule { kNormal, kZeros, kOnes };

struct ParamSpec {
  std::string name;            // parameter_names.h
  std::vector<int64_t> shape;  // global
  int split_dim = -1;          // dim split into equal contiguous shards, one for each place on `sharded`; -1: none
  AxisSet sharded = {};        // ranks along other axes hold the same values; empty if split_dim is -1
  // The axes over which the ranks' gradients must be summed. On pp: over the stages that hold the parameter (a tied
  // embedding, on the first and the last stage).
  AxisSet reduced = kTokenAxes;
  InitRule init = InitRule::kZeros;
  float init_std = 0.0f;
  int64_t valid_rows = -1;  // rows of dim 0 without padding, which starts as zero and stays zero. -1: all
  bool decay = false;       // matrices decay and have a LAMB trust ratio; norms and biases do not
  bool tied_copy = false;   // the head's copy of the embedding on the last stage: norms count it once
  // Muon updates its logical matrices (optimizer.name: muon): one for each index of the dims before the last two, or
  // of the shape (N, K) one for each of the runs of rows that alternate (LinearSpec::interleaved).
  bool muon = false;
  bool experts = false;  // dim 0 counts experts, each of which is a tensor of its own to the optimizer
  std::array<int64_t, 3> interleaved{};
  // With ZeRO 2 and a plan that delays weight gradients: its gradient is added with the input gradients all the same.
  bool undelayed = false;
  int64_t fp8_slot = -1;  // its slot in Fp8Tensors if it is stored in FP8 rather than in compute precision

  int64_t numel() const;
  // Returns the index of the shard that the mesh's rank holds, and the number of shards.
  Axis shard(const Mesh& mesh) const { return mesh.joint_axis(sharded); }
  // The shape of one of `shards`, or of the shard of the mesh's rank.
  std::vector<int64_t> local_shape(int shards) const;
  std::vector<int64_t> local_shape(const Mesh& mesh) const { return local_shape(shard(mesh).size); }
  // Returns the tensors of the optimizer that the mesh's rank holds of it, all of the same size.
  int64_t local_tensors(const Mesh& mesh) const { return experts ? local_shape(mesh)[0] : 1; }
  int64_t local_numel(int shards) const;
  int64_t local_numel(const Mesh& mesh) const { return local_numel(shard(mesh).size); }
};

// A parameter of this rank with its memory. Under ZeRO-2 the gradient has no memory of its own: see ParameterHooks.
struct Parameter {
  ParamSpec spec;
  Tensor weight;  // local shape, compute dtype or FP8 weights
  int chunk = 0;
  int index = 0;  // in the chunk's list
};

// Returns the weight of a module, which must be among `parameters`.
const Parameter* find_weight(const std::vector<Parameter>& parameters, std::string_view module, int layer = kNoLayer);
// Returns the bias of a module; null if the model has none there.
const Parameter* find_bias(const std::vector<Parameter>& parameters, std::string_view module, int layer = kNoLayer);

// Returns the parameters of `chunk` on pp rank `pp.rank`, in the order of their use in the forward pass. The backward
// pass completes their gradients in exactly the reverse order.
std::vector<ParamSpec> chunk_parameters(const Config& config, Axis pp, int chunk);

// Returns all parameters of the model, each once.
std::vector<ParamSpec> model_parameters(const Config& config);

// Returns the start values of a shard whose `spec.init` is kNormal, in local element order; the caller sets `out` and
// `begin`. An element is a pure function of (seed, name, global element).
NormalValues normal_start(const ParamSpec& spec, Axis shard, uint64_t seed);

// Where the layers get gradient memory, and which events they report. They call, in this order for each use:
//   before_use(p)       the weight is about to be read on the compute stream
//   gradient(p)         where to add the gradient, local shape, f32; valid until gradient_ready(p)
//   gradient_target(p)  the same for a GEMM that can also overwrite; `beta` says which
//   gradient_ready(p)   the last addition of this backward pass is enqueued
class ParameterHooks {
 public:
  struct GradientTarget {
    Tensor tensor;
    float beta;  // 0: nothing was added yet, the GEMM overwrites
  };

  virtual ~ParameterHooks() = default;
  virtual void before_use(const Parameter& parameter) = 0;
  virtual Tensor gradient(const Parameter& parameter) = 0;
  virtual GradientTarget gradient_target(const Parameter& parameter) = 0;
  virtual void gradient_ready(const Parameter& parameter) = 0;
};

}  // namespace tri
