// The MLP as a kind of branch: its spec, the tensors that it saves for a microbatch, and its workspace. The steps that
// run it are a BranchLayer (branch.h), made in mlp.cpp.
#pragma once

#include <memory>
#include <vector>

#include "kernels/core/arena.h"
#include "kernels/core/kinds.h"
#include "lib/config/kinds.h"
#include "lib/model/linear_spec.h"

namespace tri {

// Two linears around an activation: fc2(act(fc1(x))).
struct MlpSpec {
  int64_t hidden = 0, ffn_hidden = 0;
  Activation activation = Activation::kGelu;
  bool bias = false;

  bool gated() const { return is_gated(activation); }
  int64_t fc1_width() const { return gated() ? 2 * ffn_hidden : ffn_hidden; }
  LinearSpec fc1() const;
  LinearSpec fc2() const;
  std::vector<ModuleSpec> modules() const { return {fc1(), fc2()}; }         // in the order of the forward pass
  double kept_elements() const { return static_cast<double>(fc1_width()); }  // per token, as in AttentionSpec
  // Elements per token that fc2 reads: also saved with parallel.recompute none and norms; one byte each in FP8 layers.
  double activated_elements() const { return static_cast<double>(ffn_hidden); }
  double kept_statistics() const { return 0; }
  double core_flops_per_token(AttentionWork) const { return 0; }
  int64_t widest_output(int tp) const { return fc1_width() / tp; }
  // The workspace per token, as in AttentionSpec: dfc1 and dactivated; casts of dfc1.
  double workspace_elements(QkvOrder) const { return static_cast<double>(fc1_width() + (gated() ? ffn_hidden : 0)); }
  double cast_bytes() const { return static_cast<double>(2 * fc1_width()); }
  // Whether GEMMs compute the activation as their epilogue, as those of GeLU's tanh form do, except in FP8.
  bool in_epilogue() const { return activation == Activation::kGelu; }
  // Returns the elements per token that a separate kernel for the activation, or for its gradient, reads and writes.
  double activation_elements(Pass pass) const;
  // What parallel.recompute: selective repeats of it.
  double recomputed_elements() const { return activation_elements(Pass::kForward); }
  // The elements that kernels next to fc1's GEMMs process, and those of the inner step. With FP8, the casts of its
  // output are the activation's kernels.
  double column_elements(Pass, int) const { return 0; }
  double inner_elements(Pass pass, bool fp8) const { return in_epilogue() || fp8 ? 0 : activation_elements(pass); }
  // The elements that a GEMM's epilogue processes in the inner step.
  double epilogue_elements(Pass pass, bool fp8) const { return in_epilogue() && !fp8 ? activation_elements(pass) : 0; }

  bool operator==(const MlpSpec&) const = default;
};

// What one layer saves for the backward pass of a microbatch.
struct MlpTensors {
  Tensor fc1;        // (R, fc1_width / tp)
  Tensor activated;  // (R, Fl); with FP8 the rows that fc2's forward GEMM reads, in the workspace
  // (Fl, R); with FP8: what fc2's weight gradient reads. Shares the memory of `activated` if not saved
  Tensor activated_t;
};

// The workspace that the layers of a stage share.
struct MlpWorkspace {
  Tensor activated;  // (R, Fl): an activation, recomputed (parallel.recompute: selective)
  Tensor dfc1;       // (R, fc1_width / tp)
  // (R, Fl): the gradient of `activated`; without a gate dfc1 itself, because gradients are then computed in place
  Tensor dactivated;
  // FP8 casts, if any layer's GEMMs are FP8: of an activation, of dfc1, and the transpose of the latter.
  Tensor fp8_activated, fp8_dfc1, fp8_dfc1_t;
};

class BranchLayer;
struct BranchMemory;
struct LayerSpec;
struct LayerTensors;
struct LayerWorkspace;
struct Parameter;
void allocate_tensors(const MlpSpec& mlp, const BranchMemory& memory, LayerTensors& tensors);
void allocate_workspace(const MlpSpec& mlp, const BranchMemory& memory, LayerWorkspace& work);
// As for attention.
void allocate_due(const MlpSpec& mlp, const BranchMemory& memory, LayerTensors& inputs, LayerWorkspace& work);
// Return the tensors with the workspace's memory for what is not saved; views of the first rows, as first_rows does for
// all tensors of a layer.
MlpTensors with_workspace(MlpTensors tensors, const MlpWorkspace& work, bool fp8);
MlpTensors first_rows(MlpTensors tensors, int64_t rows);
std::unique_ptr<BranchLayer> make_branch(const MlpSpec& mlp, const LayerSpec& layer_spec, int layer,
                                         const std::vector<Parameter>& parameters);

}  // namespace tri
