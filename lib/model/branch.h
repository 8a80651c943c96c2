// A branch of a transformer block, attention, MLP or experts, with its parameters, as the steps that the block runs.
// The block decides their order, what overlaps which transfer (block_order.h), and where the residual stream goes.
// Threads: call only from the training thread, with the same calls on all ranks of a stage; work is only enqueued,
// unless the header of the branch says that it waits (moe.h).
#pragma once

#include <vector>

#include "lib/model/layers.h"

namespace tri {

// The blocks of a reduce in progress, for the GEMM that computes partial sums (R, C).
struct PartialSums {
  const std::vector<RowBlock>& blocks;
  float beta = 0.0f;  // 1: added to what the other branch has written there
  Then then = Then::kSend;
};

// Why the inner step of a forward pass runs.
enum class Inner {
  kForward,
  kAgain,       // in a whole forward pass that a backward pass repeats
  kRecomputed,  // alone, from the saved output of the column-parallel linear
};

// All steps enqueue on ctx.compute. `t`: the layer's tensors; a backward pass finds in them what forward saved or what
// was recomputed. `normed` (R, C): the gathered rows of the norm that the branch reads.
class BranchLayer {
 public:
  virtual ~BranchLayer() = default;

  virtual void column_forward(const LayerContext& ctx, const LayerTensors& t, Tensor normed) const = 0;
  virtual void inner_forward(const LayerContext& ctx, const LayerTensors& t, Inner inner) const = 0;
  virtual void row_forward(const LayerContext& ctx, const LayerTensors& t, const PartialSums& sums) const = 0;
  // At the beginning of a backward pass: repeats what parallel.recompute does not save between the branch's ends.
  virtual void recompute(const LayerContext&, const LayerTensors&) const {}

  // Computes, from the gathered gradient of the residual stream, that of the rows that row_forward read; then the
  // gradient through attention or the activation; then partial sums of the gradient of `normed`.
  virtual void row_gradient(const LayerContext& ctx, const LayerTensors& t) const = 0;
  virtual void inner_backward(const LayerContext& ctx, const LayerTensors& t) const = 0;
  virtual void column_gradient(const LayerContext& ctx, const PartialSums& sums) const = 0;
  // Add to the gradients of the weights, and of biases that no earlier step covered. Call resume() first if other
  // microbatches came between the branch's backward pass and these.
  virtual void resume(const LayerContext&, const LayerTensors&) const {}
  virtual void row_weight(const LayerContext& ctx, const LayerTensors& t) const = 0;
  virtual void column_weight(const LayerContext& ctx, Tensor normed) const = 0;

  virtual const ColumnLinear& column_linear() const = 0;
  virtual const RowLinear& row_linear() const = 0;
};

}  // namespace tri
