// What each layer of a model consists of, as values. Parameters, saved tensors, FLOPs, FP8 scales, the simulator, the
// planner and other programs' formats derive from these lists. Pure: no device, and no layout of ranks.
//
// A layer has two branches, attention and MLP. A branch begins with a column-parallel linear, which reads the rows of
// a norm, and ends with a row-parallel linear, whose output joins the residual stream.
#pragma once

#include <algorithm>
#include <array>
#include <vector>

#include "kernels/core/gpu.h"
#include "lib/config/config.h"
#include "lib/model/attention.h"
#include "lib/model/mlp.h"

namespace tri {

struct LayerSpec {
  AttentionSpec attention;
  MlpSpec mlp;

  std::array<LinearSpec, 2> linears(Branch branch) const;
  // Returns the norms of a branch between its two linears.
  std::vector<NormSpec> norms(Branch branch) const;
  // Returns all linears in the order of the forward pass. FP8 scales and messages refer to a linear by its index here.
  std::vector<LinearSpec> linears() const;
  // Returns the elements of the linears' weights, without norms and biases.
  double weights() const;
  // Returns model FLOPs, forward and backward. A multiply-add counts as two; recomputed work counts once.
  double flops_per_token(AttentionWork work) const;

  // Per token, the sums of both branches: elements saved in the compute type and in fp32 with every recompute except
  // full, and elements that recompute none and norms save in addition.
  double kept_elements() const { return attention.kept_elements() + mlp.kept_elements(); }
  double kept_statistics() const { return attention.kept_statistics(); }
  double activated_elements() const { return mlp.activated_elements(); }
  // The branches' workspace: elements in the compute type, and bytes of FP8 casts.
  double workspace_elements(QkvOrder order) const {
    return attention.workspace_elements(order) + mlp.workspace_elements();
  }
  double cast_bytes() const { return attention.cast_bytes() + mlp.cast_bytes(); }
  int64_t widest_input(int tp) const;  // columns of the widest input of a linear on a tp rank
  // The sizes of one tp rank's share on which its kernels' workspace depends. The caller sets the numbers' type, the
  // attention kernel and the batch.
  WorkspaceDims kernel_workspace(int tp) const;

  // Whether the other layer's tensors and workspace have the same shapes.
  bool same_sizes(LayerSpec other) const {
    other.attention.window = attention.window;
    return other == *this;
  }
  bool operator==(const LayerSpec&) const = default;
};

// Returns layer `layer` of the model, from 0. `model` must be resolved.
LayerSpec layer_spec(const ModelConfig& model, int layer);

// Returns the period with which layers repeat: layers with equal numbers modulo it are alike. 1: all are alike.
int layer_period(const ModelConfig& model);

// Calls visit(spec, count) for each kind of layer among layers [first, first + count), with their number.
template <class Visit>
void for_layer_kinds(const ModelConfig& model, int first, int count, Visit visit) {
  const int period = layer_period(model);
  for (int i = 0; i < std::min(period, count); ++i)
    visit(layer_spec(model, first + i), count / period + (i < count % period ? 1 : 0));
}

// Sums `number(spec)` over those layers.
template <class Number>
double sum_over_layers(const ModelConfig& model, int first, int count, Number number) {
  double sum = 0;
  for_layer_kinds(model, first, count, [&](const LayerSpec& spec, int alike) { sum += alike * number(spec); });
  return sum;
}

}  // namespace tri
