// The transformer block with hand-written backward, tensor-parallel with sequence parallelism.
//   sequential  m = x + proj(attention(qkv(norm1(x))));  y = m + fc2(act(fc1(norm2(m))))
//   parallel    n = norm1(x);  y = x + proj(attention(qkv(n))) + fc2(act(fc1(n)))          (GPT-J, PaLM, MegaScale)
// A norm's rows are gathered over tp before the column-parallel products (qkv, fc1); the row-parallel products (proj,
// fc2) are reduce-scattered back to rows. Sequential: two gathers and two reduces a forward pass; parallel: one and
// one.
//
// The residual addition of a branch is fused into the norm that follows it, in the next block if need be: a forward
// pass hands on the stream together with the branch that is still to be added.
#pragma once

#include <functional>

#include "lib/model/layers.h"

namespace tri {

class TransformerBlock {
 public:
  // `parameters`: those of the chunk that holds layer `layer`; they outlive the block.
  TransformerBlock(int layer, const std::vector<Parameter>& parameters, const Config& config);

  // Fills the tensors of `t` that are there; where `stream` has nothing to add, t.input becomes stream.inp itself.
  // The branch handed on lies in work.partial and lasts until the next layer's first product.
  ResidualStream forward(const LayerContext& ctx, ResidualStream stream, LayerTensors& t) const;

  // A weight gradient that has not been enqueued yet: work to run beside a transfer.
  using WeightGradient = std::function<void()>;
  enum class Leaves { kWork, kNothing };

  // On entry the own rows of work.dstream are the gradient of the block's output; `dinput` (Rl, C) receives that of its
  // input (it may be those own rows). Parameter gradients are added to. `later` on entry: what the layer above has
  // left, run beside this layer's first gather; on return: what this one leaves. It reads work.dqkv and `kept`, and
  // `ctx`.
  void backward(const LayerContext& ctx, const LayerTensors& kept, Tensor dinput, WeightGradient& later,
                Leaves leaves) const;

 private:
  void forward_kept(const LayerContext& ctx, ResidualStream stream, LayerTensors& t) const;
  void attention_forward(const LayerContext& ctx, const LayerTensors& t, Tensor normed) const;
  void mlp_forward(const LayerContext& ctx, const LayerTensors& t, Tensor normed) const;
  void attention_backward(const LayerContext& ctx, const LayerTensors& t) const;
  void mlp_backward(const LayerContext& ctx, const LayerTensors& t) const;
  void fc1_backward_weight(const LayerContext& ctx, Tensor inp) const;
  LayerTensors again(const LayerContext& ctx, const LayerTensors& kept) const;
  void backward_sequential(const LayerContext& ctx, const LayerTensors& t, Tensor dinput, WeightGradient& later,
                           Leaves leaves) const;
  void backward_parallel(const LayerContext& ctx, const LayerTensors& t, Tensor dinput, WeightGradient& later,
                         Leaves leaves) const;
  void leave_qkv_weight(const LayerContext& ctx, Tensor inp, WeightGradient& later, Leaves leaves) const;
  bool is_parallel(const LayerContext& ctx) const { return ctx.config.model.block == Block::kParallel; }

  NormLayer norm1_, norm2_;
  ColumnLinear qkv_, fc1_;
  RowLinear proj_, fc2_;
};

}  // namespace tri
