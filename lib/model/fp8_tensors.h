// The memory of FP8 GEMMs in one stage. Set-up only, as in stage_tensors.h. The design: kernels/FP8.md.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "kernels/core/arena.h"
#include "kernels/fp8.h"
#include "lib/config/config.h"
#include "lib/model/layer_spec.h"
#include "lib/parallel/mesh.h"

namespace tri {

// The operands of a GEMM that are cast: the rows that it reads forward, its weight, the gradient of its output.
enum class Fp8Operand { kInput, kWeight, kGradient };
inline constexpr int kNumFp8Operands = 3;

// Whether any layer's GEMMs multiply FP8 (LayerSpec::fp8).
bool any_fp8_layer(const Config& config);
// Whether the weights of those GEMMs are stored only in FP8; the optimizer's update casts them from the master weights.
// This needs master weights (precision.compute: bf16). Otherwise the weights are stored in precision.compute and cast
// in each run of a plan.
bool keeps_fp8_weights(const Config& config);

// A weight of this rank in both orientations, e4m3; of experts, each one's: (E, N, K) and (E, K, N). Absent for linears
// that do not multiply FP8.
struct Fp8Weight {
  Tensor values;      // (N, K); absent with keeps_fp8_weights, since the parameter itself is FP8
  Tensor transposed;  // (K, N)
};

// Slots: one for each operand of each linear of each layer of the model, the same on every rank: by operand, then
// layer, then linear in the layer's list. A rank fills those of its layers; the reduction in each step completes the
// others.
class Fp8Slots {
 public:
  explicit Fp8Slots(const Config& config);
  int64_t count() const { return kNumFp8Operands * linears(); }              // 0 if no layer's GEMMs are FP8
  int64_t linears() const { return static_cast<int64_t>(modules_.size()); }  // in all layers
  // Returns the index of a linear among those of the model.
  int64_t place(int layer, int linear) const { return first_[static_cast<size_t>(layer)] + linear; }
  int64_t of(Fp8Operand operand, int layer, int linear) const {
    return static_cast<int64_t>(operand) * linears() + place(layer, linear);
  }
  // Properties of a slot.
  int layer_of(int64_t slot) const;
  std::string name_of(int64_t slot) const;  // "layers/0/attention/qkv/input"

 private:
  std::vector<int64_t> first_;             // [layer]: the index of its first linear
  std::vector<std::string_view> modules_;  // [place]
};

struct Fp8Tensors {
  Tensor inverse;  // (slots, kFp8InverseStride) f32
  Tensor counts;   // (slots, kNumFp8Counts) i64
  Tensor numbers;  // (3 · slots) f32: scales, amax of a step, history
  // (slots · kNumFp8Counts) f32, of a step: summed over all ranks with RankTensors::step_statistics
  Tensor float_counts;
  std::vector<std::vector<std::vector<Fp8Weight>>> weights;  // [chunk][layer of the chunk][linear]

  int64_t slots() const { return inverse.empty() ? 0 : inverse[0]; }
  Tensor scale() const { return numbers.flat(0, slots()); }
  Tensor amax() const { return numbers.flat(slots(), slots()); }
  Tensor history() const { return numbers.flat(2 * slots(), slots()); }
};

// The workspace of a stage's branches. Gradients are in precision.fp8_gradients, the rest is e4m3.
struct Fp8Workspace {
  Tensor normed;              // (R, C): a gathered norm, recomputed (parallel.recompute: norms, selective)
  Tensor dstream, dstream_t;  // (R, C): the gradient of the residual stream, gathered; and its transpose
  // Bytes: the transpose of an input, for a weight gradient. Forward passes store the rows that fc2 reads here
  // (MlpWorkspace::fp8_activated). Backward passes store their transpose here if it was not saved, from its
  // recomputation to fc2's weight gradient.
  Tensor input_transpose;

  Tensor rows_of(int64_t rows, int64_t width) const {
    return input_transpose.flat(0, rows * width).view({rows, width});
  }
};

struct StageDims;
Fp8Tensors allocate_fp8(const Config& config, const Mesh& mesh, Arena& arena);
Fp8Workspace allocate_fp8_workspace(const Config& config, const LayerSpec& layer, const StageDims& dims, Arena& arena);

}  // namespace tri
