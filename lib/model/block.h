// The transformer block with hand-written backward, tensor-parallel with sequence parallelism.
//   sequential  m = x + attention(norm1(x));  y = m + mlp(norm2(m))
//   parallel    n = norm1(x);  y = x + attention(n) + mlp(n)                              (GPT-J, PaLM, MegaScale)
// A norm's rows are gathered over tp before the column-parallel GEMMs (qkv, fc1); the sums of the row-parallel GEMMs
// (proj, fc2) are reduce-scattered back to rows. Sequential: two gathers and two reduces a forward pass; parallel: one
// and one. What runs concurrently with which of them stands in block_order.h, and what a step computes in the branch
// (branch.h).
//
// The residual addition of a branch is fused into the norm that follows it, in the next block if need be: a forward
// pass hands on the stream together with the branch that is still to be added.
#pragma once

#include <array>
#include <functional>
#include <memory>
#include <span>

#include "lib/model/block_order.h"
#include "lib/model/branch.h"

namespace tri {

class TransformerBlock {
 public:
  // `parameters`: those of the chunk that holds layer `layer`; they outlive the block.
  TransformerBlock(int layer, const std::vector<Parameter>& parameters, const Config& config);

  // Fills the tensors of `t` that are there; where `stream` has nothing to add, t.input becomes stream.inp itself.
  // The branch handed on lies in work.partial and lasts until the next layer's first GEMM.
  ResidualStream forward(const LayerContext& ctx, ResidualStream stream, LayerTensors& t) const;

  // A weight gradient that has not been enqueued yet: a GEMM to run concurrently with a transfer.
  using WeightGradient = std::function<void()>;
  // What becomes of the layer's own qkv weight gradient.
  enum class QkvWeight { kDefer, kEnqueue };

  // On entry the local rows of work.dstream are the gradient of the block's output; `dinput` (Rl, C) receives that of
  // its input (it may be those local rows). Parameter gradients are added to. `deferred` on entry: what the layer above
  // has deferred, run concurrently with this layer's first gather; on return: what this one has. It reads
  // work.attention and `kept`, and `ctx`.
  void backward(const LayerContext& ctx, const LayerTensors& kept, Tensor dinput, WeightGradient& deferred,
                QkvWeight qkv_weight) const;

  // Of a region of the block's order the GEMMs alone, in the memory of `t` and the workspace, whatever stands there.
  // `sums`: the blocks of the region's reduce. The deferred weight gradient is this layer's own.
  void run_gemms(const TransferRegion& region, const LayerContext& ctx, const LayerTensors& t,
                 const std::vector<RowBlock>& sums) const;

  bool is_fp8() const { return fp8_; }  // is_fp8_layer() of the layer

 private:
  struct State;

  void run_forward(State& s, std::span<const TransferRegion> regions) const;
  // The steps of a region; of GEMMs alone where `gemms_alone`.
  void run(State& s, const TransferRegion& region, bool gemms_alone = false) const;
  void run(State& s, const TransferRegion& region, const BlockStep& at) const;
  // Norms the stream for a branch, and gathers the rows.
  void gather_norm(State& s, Branch branch) const;
  // Gathers the gradient of the residual stream for the row-parallel linear of a branch.
  void gather_gradient(State& s, Branch branch) const;
  // The backward of the norm whose rows a branch has read.
  void norm_backward(State& s, Branch branch) const;
  void defer_weight(State& s, Branch branch) const;
  LayerTensors recomputed(const LayerContext& ctx, const LayerTensors& kept) const;

  bool is_parallel() const { return block_ == Block::kParallel; }
  const BranchLayer& of(Branch branch) const { return *branches_[static_cast<size_t>(branch)]; }
  // The norm that a branch reads, and its tensors: in the parallel block both read the first.
  size_t norm_of(Branch branch) const { return is_parallel() ? 0 : static_cast<size_t>(branch); }
  Tensor normed(const LayerTensors& t, Branch branch) const { return t.norms[norm_of(branch)].rows; }

  Block block_;
  bool fp8_;  // whether the GEMMs multiply FP8, and what they alone read is kept and gathered as FP8
  std::array<NormLayer, 2> norms_;                        // [Branch]; the parallel block has one
  std::array<std::unique_ptr<BranchLayer>, 2> branches_;  // [Branch]
};

}  // namespace tri
