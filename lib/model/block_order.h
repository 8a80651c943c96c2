// The order of a layer's work, as data: the block (block.h) runs it, and whoever times the transfers of a layer reads
// it.
//
// A pass is a list of tensor-parallel transfers, each with the steps that are enqueued between its begin and its end:
//   gather   Rows (R, C) are completed from every tp rank's local ones, which a norm makes in the forward pass; in the
//            backward pass they are the gradient of the residual stream. The GEMM that reads them may start on the rows
//            that have arrived.
//   reduce   GEMMs make partial sums (R, C) and send them to the ranks that own the rows. The sum is read by the norm
//            that follows (forward), or by the backward of the norm before (backward).
// So a gather belongs to the first GEMM that reads its rows, a reduce to the last one that adds to its sums, and the
// overlap split of the transfer is that GEMM's.
#pragma once

#include <string>
#include <vector>

#include "lib/model/layers.h"

namespace tri {

enum class BlockStep {
  // GEMMs: outputs, gradients of inputs, gradients of weights.
  kQkvForward,
  kProjForward,
  kFc1Forward,  // GeLU is its epilogue, except with FP8
  kFc2Forward,
  kQkvInput,
  kProjInput,
  kFc1Input,
  kFc2Input,           // the gradient of GeLU is its epilogue, except with FP8
  kDeferredQkvWeight,  // of the layer above
  kProjWeight,
  kFc1Weight,
  kFc2Weight,
  // Everything else.
  kDeferQkvWeight,  // to the layer below; the lowest layer of a stage enqueues it at once
  kAttentionForward,
  kActivationForward,  // SwiGLU; GeLU only where fc1 multiplies FP8, whose GEMM has no such epilogue
  kAttentionBackward,
  kActivationBackward,  // as kActivationForward
  kRecompute,           // what backward reads and forward did not keep
  kRecomputeNorm1,      // in memory that it shares with norm2
};

bool is_gemm(BlockStep step);

struct TransferRegion {
  Linear linear{};  // whose overlap split is the transfer's
  Pass pass{};
  std::vector<BlockStep> steps;

  // Else it gathers. Row-parallel GEMMs make partial sums in the forward pass, column-parallel ones in the backward
  // pass.
  bool reduces() const { return (linear == Linear::kProj || linear == Linear::kFc2) == (pass == Pass::kForward); }
  // The gathered rows, or the partial sums: (R, C).
  Tensor rows(const LayerWorkspace& work, const LayerTensors& t) const;
};

// The transfers of a pass in their order. What backward reads is complete before the last transfer of a forward pass.
const std::vector<TransferRegion>& block_order(Block block, Pass pass);

// The GEMMs of a region in their order, for people: "qkv weight, fc2 backward".
std::string gemm_names(const TransferRegion& region);

}  // namespace tri
