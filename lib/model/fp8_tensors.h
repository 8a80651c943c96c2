// The memory of FP8 GEMMs on one stage. Pure set-up, as in stage_tensors.h. The design: kernels/FP8.md.
#pragma once

#include <array>
#include <string>
#include <vector>

#include "kernels/core/arena.h"
#include "kernels/fp8.h"
#include "lib/config/config.h"
#include "lib/parallel/mesh.h"

namespace tri {

// The GEMMs of a layer whose rows are gathered or reduced over tp.
enum class Linear { kQkv, kProj, kFc1, kFc2 };
inline constexpr int kNumLinears = 4;

// What of a GEMM is cast: the rows that it reads forward, its weight, the gradient of its output.
enum class Fp8Operand { kInput, kWeight, kGradient };
inline constexpr int kNumFp8Operands = 3;

// Of Fp8Tensors; 0 where no layer's GEMMs are FP8.
int64_t fp8_slots(const Config& config);

// Whether the GEMMs of a layer of the model multiply FP8. The rows that they alone read are then kept and gathered as
// FP8.
bool is_fp8_layer(const Config& config, int layer);
bool any_fp8_layer(const Config& config);
// Whether the weights of those GEMMs are stored as FP8 only, which the optimizer's update casts from the master
// weights: that needs master weights (precision.compute: bf16). Otherwise they are stored in precision.compute and cast
// in each run of a plan.
bool keeps_fp8_codes(const Config& config);

// A weight of this rank in both orientations, e4m3.
struct Fp8Weight {
  Tensor values;      // (N, K); absent where codes are kept: the parameter itself
  Tensor transposed;  // (K, N)
};

// Slots: one an operand of each linear of each layer of the model, on every rank alike: slot = (operand · L + layer) ·
// kNumLinears + linear. This rank fills those of its layers, and the reduction of a step completes the others.
int64_t fp8_slot(const Config& config, Fp8Operand operand, int layer, Linear linear);
struct Fp8Tensors {
  Tensor inverse;       // (slots, kFp8InverseStride) f32
  Tensor counts;        // (slots, kNumFp8Counts) i64
  Tensor numbers;       // (3 · slots) f32: scales, amax of a step, history
  Tensor float_counts;  // (slots · kNumFp8Counts) f32, of a step: among the numbers that all ranks sum (RankTensors)
  std::vector<std::vector<std::array<Fp8Weight, kNumLinears>>> weights;  // [chunk][layer of the chunk][Linear]

  int64_t slots() const { return inverse.empty() ? 0 : inverse[0]; }
  Tensor scale() const { return numbers.flat(0, slots()); }
  Tensor amax() const { return numbers.flat(slots(), slots()); }
  Tensor history() const { return numbers.flat(2 * slots(), slots()); }
};

// What the layers of a stage share. Gradients are in precision.fp8_gradients, the rest is e4m3.
struct Fp8Workspace {
  Tensor normed;              // (R, C): a gathered norm, recomputed (parallel.recompute: norms, selective)
  Tensor activated;           // (R, Fl): the rows for fc2, in the memory of input_transpose
  Tensor attention;           // (R, NHl · HS)
  Tensor dstream, dstream_t;  // (R, C): the gradient of the residual stream, gathered; and its transpose
  Tensor dfc1, dfc1_t;        // (R, fc1_width) and its transpose
  Tensor dqkv, dqkv_t;        // (R, qkv_width) and its transpose
  // Bytes: the transpose of an input, for a weight gradient. Forward passes have the rows of `activated` here, and
  // backward passes their transpose where it is not kept, from its recomputation to fc2's weight gradient.
  Tensor input_transpose;
};

struct StageDims;
Fp8Tensors allocate_fp8(const Config& config, const Mesh& mesh, const StageDims& dims, Arena& arena);
Fp8Workspace allocate_fp8_workspace(const Config& config, const StageDims& dims, Arena& arena);

}  // namespace tri
