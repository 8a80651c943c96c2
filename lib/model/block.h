// The transformer block with hand-written backward, tensor-parallel with sequence parallelism.
//   sequential  m = x + proj(attention(qkv(norm1(x))));  y = m + fc2(act(fc1(norm2(m))))
//   parallel    n = norm1(x);  y = x + proj(attention(qkv(n))) + fc2(act(fc1(n)))          (GPT-J, PaLM, MegaScale)
// A norm's rows are gathered over tp before the column-parallel GEMMs (qkv, fc1); the sums of the row-parallel GEMMs
// (proj, fc2) are reduce-scattered back to rows. Sequential: two gathers and two reduces a forward pass; parallel: one
// and one. What runs beside which of them stands in block_order.h.
//
// The residual addition of a branch is fused into the norm that follows it, in the next block if need be: a forward
// pass hands on the stream together with the branch that is still to be added.
#pragma once

#include <functional>
#include <span>

#include "lib/model/block_order.h"

namespace tri {

class TransformerBlock {
 public:
  // `parameters`: those of the chunk that holds layer `layer`; they outlive the block.
  TransformerBlock(int layer, const std::vector<Parameter>& parameters, const Config& config);

  // Fills the tensors of `t` that are there; where `stream` has nothing to add, t.input becomes stream.inp itself.
  // The branch handed on lies in work.partial and lasts until the next layer's first GEMM.
  ResidualStream forward(const LayerContext& ctx, ResidualStream stream, LayerTensors& t) const;

  // A weight gradient that has not been enqueued yet: a GEMM to run beside a transfer.
  using WeightGradient = std::function<void()>;
  // What becomes of the layer's own qkv weight gradient.
  enum class QkvWeight { kDefer, kEnqueue };

  // On entry the local rows of work.dstream are the gradient of the block's output; `dinput` (Rl, C) receives that of
  // its input (it may be those local rows). Parameter gradients are added to. `deferred` on entry: what the layer above
  // has deferred, run beside this layer's first gather; on return: what this one has. It reads work.dqkv and `kept`,
  // and `ctx`.
  void backward(const LayerContext& ctx, const LayerTensors& kept, Tensor dinput, WeightGradient& deferred,
                QkvWeight qkv_weight) const;

  bool is_fp8() const { return is_fp8_; }

  // Of a region of the block's order the GEMMs alone, in the memory of `t` and the workspace, whatever stands there.
  // `sums`: the blocks of the region's reduce. The deferred weight gradient is this layer's own.
  void run_gemms(const TransferRegion& region, const LayerContext& ctx, const LayerTensors& t,
                 const std::vector<RowBlock>& sums) const;

 private:
  struct State;

  void run_forward(State& s, std::span<const TransferRegion> regions) const;
  void run(State& s, BlockStep step) const;
  // The norm whose rows a forward pass gathers for `linear`.
  void gather_norm(State& s, Linear linear) const;
  // The gradient of the residual stream, which a backward pass gathers for `linear`.
  void gather_gradient(State& s, Linear linear) const;
  // The backward of the norm that made the rows which `linear` has read.
  void norm_backward(State& s, Linear linear) const;

  // RoPE. Forward from qkv's output `inp` to the rows `out` that attention reads; backward from the gradient `inp` of
  // those rows to that of qkv's output, `out`. A model without RoPE: `inp` is `out`, and nothing is done.
  void rotate(const LayerContext& ctx, Pass pass, Tensor out, Tensor inp) const;
  // The memory of that `inp`: `out` itself, unless RoPE changes the order of heads.
  Tensor rope_input(const LayerContext& ctx, Tensor out) const;
  void attention_forward(const LayerContext& ctx, const LayerTensors& t) const;
  void attention_backward(const LayerContext& ctx, const LayerTensors& t) const;
  void fc1_forward(const LayerContext& ctx, const LayerTensors& t) const;
  Tensor transpose_dstream(const LayerContext& ctx, const RowLinear& linear) const;
  Tensor dactivated(const LayerContext& ctx) const;
  enum class Activate { kForward, kAgain };
  void activate(const LayerContext& ctx, const LayerTensors& t, Activate when) const;
  void activation_backward(const LayerContext& ctx, const LayerTensors& t) const;
  void fc2_input(const LayerContext& ctx, const LayerTensors& t) const;
  void fc1_weight(const LayerContext& ctx, const LayerTensors& t) const;
  void fc2_weight(const LayerContext& ctx, const LayerTensors& t) const;
  void proj_weight(const LayerContext& ctx, const LayerTensors& t) const;
  void defer_qkv_weight(State& s) const;
  LayerTensors recomputed(const LayerContext& ctx, const LayerTensors& kept) const;

  bool is_parallel() const { return block_ == Block::kParallel; }
  Tensor transpose_norm(const LayerContext& ctx, Tensor rows) const;
  // The rows that fc1 reads: (R, C).
  Tensor mlp_input(const LayerTensors& t) const { return is_parallel() ? t.normed1 : t.normed2; }

  const int layer_;  // of the model
  Block block_;
  const bool is_fp8_;  // the GEMMs multiply FP8, and the rows that they alone read are kept and gathered as FP8
  NormLayer norm1_, norm2_;
  ColumnLinear qkv_, fc1_;
  RowLinear proj_, fc2_;
};

}  // namespace tri
