// The transformer block with hand-written backward, tensor-parallel with sequence parallelism.
//   sequential  m = x + attention(norm1(x));  y = m + mlp(norm2(m))
//   parallel    n = norm1(x);  y = x + attention(n) + mlp(n)                              (GPT-J, PaLM, MegaScale)
//               y = x + attention(norm1(x)) + mlp(norm2(x)) with model.parallel_norms 2   (GPT-NeoX)
// Norms of the sequential block by model.norm_position:
//   pre   as above
//   post  m = x + post_norm1(attention(x));  y = m + post_norm2(mlp(m))                               (OLMo-2)
//   both  m = x + post_norm1(attention(norm1(x)));  y = m + post_norm2(mlp(norm2(m)))                 (Gemma 2)
// A norm's rows are gathered over tp before the column-parallel GEMMs (qkv, fc1). The sums of the row-parallel GEMMs
// (proj, fc2) are reduce-scattered back to rows. A forward pass has two gathers and two reduces (sequential), or a
// reduce and a gather per norm (parallel). block_order.h lists what overlaps which of them; branch.h computes the
// steps.
//
// The residual addition of a branch is fused into the norm of the next branch's rows, if necessary in the next block: a
// forward pass returns the stream together with the branch that is still to be added.
//
// Threads: as in branch.h.
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
  // `parameters` belong to the chunk that holds layer `layer` and outlive the block.
  TransformerBlock(int layer, const std::vector<Parameter>& parameters, const Config& config);

  // Fills the tensors present in `t`. If `stream` has nothing to add, t.input becomes stream.inp itself. The returned
  // branch is in work.partial or work.branch and is valid until the next layer's first GEMM.
  ResidualStream forward(const LayerContext& ctx, ResidualStream stream, LayerTensors& t) const;

  // A weight gradient that is not enqueued yet: a GEMM that can overlap a transfer.
  using WeightGradient = std::function<void()>;
  // What happens to the layer's own qkv weight gradient.
  enum class QkvWeight { kDefer, kEnqueue };

  // On entry the local rows of work.dstream hold the gradient of the block's output. `dinput` (Rl, C) receives the
  // gradient of its input; it may be those local rows. Adds to parameter gradients. `deferred` on entry: the weight
  // gradient deferred by the layer above, which overlaps this layer's first gather; on return: the one deferred by this
  // layer, which reads work.attention, `kept` and `ctx`.
  void backward(const LayerContext& ctx, const LayerTensors& kept, Tensor dinput, WeightGradient& deferred,
                QkvWeight qkv_weight) const;

  // The same in a plan that splits the backward pass: weight_gradients() later computes the gradients of the linears'
  // weights from `kept` and `due`, of which backward_input() fills what `kept` does not hold.
  void backward_input(const LayerContext& ctx, const LayerTensors& kept, Tensor dinput, const DueLayer& due) const;
  void weight_gradients(const LayerContext& ctx, const LayerTensors& kept, const DueLayer& due) const;

  // Runs only the GEMMs of a region of the block's order, on whatever values `t` and the workspace hold. `sums`: the
  // blocks of the region's reduce. The deferred weight gradient is this layer's own.
  void run_gemms(const TransferRegion& region, const LayerContext& ctx, const LayerTensors& t,
                 const std::vector<RowBlock>& sums) const;

  const LayerSpec& spec() const { return spec_; }

 private:
  struct State;

  void run_forward(State& s, std::span<const TransferRegion> regions) const;
  void run_backward(State& s) const;
  // Runs the steps of a region, or only its GEMMs.
  void run(State& s, const TransferRegion& region, bool gemms_alone = false) const;
  void run(State& s, const TransferRegion& region, const BlockStep& at) const;
  // Computes the local rows that a branch reads, and gathers them unless it reads only those. Writes the sum of
  // `stream` to stream_of(branch) if there is something to add.
  void gather_rows(const LayerContext& ctx, const LayerTensors& t, Branch branch, ResidualStream stream) const;
  void recompute_rows(const LayerContext& ctx, const LayerTensors& t, Branch branch) const {
    gather_rows(ctx, t, branch, {.inp = stream_of(t, branch)});
  }
  // Returns the stream after a branch whose output is `parts`, (Rl, C) or in parts.
  ResidualStream stream_after(const State& s, Branch branch, Tensor parts) const;
  // Returns the bias of a branch; of branches that are added at once, the sum of their biases, in work.bias.
  Tensor bias_to_add(const LayerContext& ctx, Branch branch) const;
  // Computes the local rows of the gradient of a branch's output from that of the residual stream, and gathers them.
  void gather_gradient(State& s, Branch branch) const;
  // Adds the gradient of the rows that a branch has read to that of the residual stream.
  void rows_backward(State& s, Branch branch) const;
  void defer_weight(State& s, Branch branch) const;
  // In place of the weight gradient of a branch's row-parallel or column-parallel linear: completes what it will read.
  void keep_row_gradient(const State& s, Branch branch) const;
  void keep_column_input(const State& s, Branch branch) const;
  void run_deferred(State& s) const;
  // Whether a backward pass recomputes the layer before anything else: it begins with the norm of the last output.
  bool recomputes_first(const LayerContext& ctx) const;
  LayerTensors recomputed(const LayerContext& ctx, const LayerTensors& kept) const;

  const BranchLayer& of(Branch branch) const { return *branches_[static_cast<size_t>(branch)]; }
  // The value of the residual stream to which a branch is added. The rows that it reads come from the same value.
  Tensor stream_of(const LayerTensors& t, Branch branch) const {
    return spec_.has_middle() && branch != kBranches.front() ? t.middle : t.input;
  }

  LayerSpec spec_;
  std::vector<NormLayer> norms_;                          // [LayerSpec::norms]
  std::array<std::unique_ptr<BranchLayer>, 2> branches_;  // [Branch]
};

}  // namespace tri
